"""The API page: lists the API's operations from its own schema. It loads nothing from other sites."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from nicegui import ui

from penstock.console.console import Console
from penstock.console.pages.frame import frame, section, title


def add(console: Console, app: FastAPI) -> None:
    @ui.page("/api/docs")
    def api_docs() -> None:
        schema = app.openapi()
        with frame(console, "API"):
            title("API", "JSON for programs. Send the token as Authorization: Bearer.")
            with ui.element("div").classes("p-row"):
                ui.link("The OpenAPI schema", "/api/openapi.json").classes("name")
                for name in ("/metrics", "/healthz", "/readyz"):
                    ui.link(name, name).classes("name")
            for path, methods in schema["paths"].items():
                with ui.card().classes("p-card"):
                    for method, about in methods.items():
                        _operation(schema, method.upper(), path, about)


def _operation(schema: dict[str, Any], method: str, path: str, about: dict[str, Any]) -> None:
    section(f"{method} {path}")
    ui.label(about.get("description", "")).classes("soft")
    for each in about.get("parameters", ()):
        required = " (required)" if each.get("required") else ""
        ui.label(f"{each['name']}: {each['schema'].get('type', 'text')}, in the {each['in']}{required}").classes(
            "small"
        )
    content = about.get("requestBody", {}).get("content", {})
    for kind in content.values():
        name = kind["schema"].get("$ref", "").rpartition("/")[2]
        for field, of in schema["components"]["schemas"].get(name, {}).get("properties", {}).items():
            ui.label(f"{field}: {of.get('type', '')} {of.get('description', '')}, in the body").classes("small")
