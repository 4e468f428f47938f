"""The verb `penstock serve`: its options. `cli.broker_process` runs a broker, and `cli.brokers` several. These are
imported when the verb runs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import exit_codes
from penstock.cli.console import LISTEN
from penstock.cli.log_output import LogFormat, LogFormatOption, LogLevel, LogLevelOption, errors_as_log, log_to
from penstock.cli.options import AsJson, Config, Pairs, option

NAMESRV: Final = "127.0.0.1:9876"


class Profile(StrEnum):
    """A named set of defaults."""

    DEV = "dev"


def serve(
    store: Annotated[Path | None, option("--store", "DIR", "The store's directory; default: data/store.")] = None,
    listen: Annotated[
        str | None, option("--listen", "HOST:PORT", "The broker's address; default: 127.0.0.1:10911.")
    ] = None,
    namesrv: Annotated[
        str, option("--namesrv", "HOST:PORT|off", "The name server's address; default: 127.0.0.1:9876.")
    ] = NAMESRV,
    register: Annotated[str | None, option("--register", "HOST:PORT;…", "More name servers to register with.")] = None,
    console: Annotated[
        str, option("--console", "HOST:PORT|off", f"The web console's address; default: {LISTEN}.")
    ] = LISTEN,
    console_account: Annotated[
        Path | None, option("--console-account", "FILE", "accessKey and secretKey for the console, with aclEnable.")
    ] = None,
    observe_port: Annotated[
        str | None,
        option(
            "--observe-port", "[HOST:]PORT|off", "Port for /metrics, /healthz and /readyz; default: the broker's + 2."
        ),
    ] = None,
    brokers: Annotated[
        int, option("--brokers", "N", "Run N brokers, each with a store in --store, to use more cores; default: 1.")
    ] = 1,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Start even if stores of former brokers are not served.")
    ] = False,
    profile: Annotated[Profile | None, option("--profile", "dev", "dev: small files, for a laptop.")] = None,
    config: Config = None,
    pairs: Pairs = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
    print_only: Annotated[
        bool, typer.Option("--print-config", help="Show the settings and where each came from, and exit.")
    ] = False,
    supervised: Annotated[str, typer.Option("--supervised", hidden=True)] = "",
    as_json: AsJson = False,
) -> None:
    """Run a broker with a name server and a web console.

    Any RocketMQ client can connect. Listens on this machine only by default, and prints its addresses; port 0 is any
    free port. Without --config it reads the file that PENSTOCK_CONFIG names, or broker.conf in this folder,
    ~/.config/penstock or /etc/penstock. Stops on SIGTERM or Ctrl-C. Exit status: 0 stopped cleanly; 1 failed, or not
    stopped within stopLimitMillis; 2 could not start: bad options, a port in use, or a store that cannot be opened.

    Examples:

    \b
      penstock serve
      penstock serve --profile dev --listen 127.0.0.1:0 --namesrv 127.0.0.1:0
      penstock serve --brokers 2 --store /srv/stores
      penstock serve --store /srv/store --listen 10.0.0.7:10911 --config broker.conf --set flushDiskType=SYNC_FLUSH
    """
    from penstock.cli.broker_process import ServeOptions, load_settings, run_broker
    from penstock.cli.brokers.names_and_ports import check_single_store, check_stores, plan_brokers
    from penstock.cli.configuration import ConfigSources, find_config, print_config

    log_to(form=log_format, level=log_level, source=supervised)
    with errors_as_log(log_format):
        config = find_config(config)
        settings = load_settings(store, config, pairs or (), dev=profile is Profile.DEV, register=register)
        options = ServeOptions(
            settings=settings,
            listen=listen,
            namesrv=namesrv,
            console=console,
            console_account=console_account,
            observe_port=observe_port,
            config=config,
            log_level=log_level,
            log_format=log_format,
            as_json=as_json,
            is_supervised=bool(supervised),
        )
        options.check()
        plans = [] if brokers == 1 else plan_brokers(options, brokers)
        if print_only:
            given = {} if register is None else {"namesrvAddr": "--register"}
            given |= {} if store is None else {"storePathRootDir": "--store"}
            sources = ConfigSources(config, pairs or (), profile is Profile.DEV, given)
            print_config(settings, sources, options.addresses, [plan.shown() for plan in plans], as_json=as_json)
            return
        if not plans:
            check_single_store(settings.store_path_root_dir)
            served = run_broker(options)
        else:
            from penstock.cli.brokers.supervisor import run_brokers

            check_stores(settings, plans, leave_out=leave_out)
            shared = [] if config is None else [f"--config={config}"]
            shared += [] if profile is None else [f"--profile={profile.value}"]
            shared += [f"--set={pair}" for pair in pairs or ()]
            served = run_brokers(options, plans, shared)
        if not served:
            raise typer.Exit(exit_codes.PROBLEM)
