def tour()->None:
    "x"
