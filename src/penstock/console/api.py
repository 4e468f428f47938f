"""The JSON API under /api, for programs: all data and all actions of the pages. Its schema is at /api/openapi.json.

An error response is `{"detail": "one sentence"}`. Changes take effect at once, without confirmation.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from penstock.client.message import ReceivedMessage
from penstock.console.chart_samples import Sample
from penstock.console.cluster_commands import MAX_QUEUES, CommandResult, QueueMove
from penstock.console.cluster_figures import BrokerFigures, GroupFigures, GroupRow, TopicFigures, TopicKind, TopicRow
from penstock.console.console import Console
from penstock.console.health import Health, check_health
from penstock.console.job_processes import Job, JobState
from penstock.console.message_search import MAX_RESULTS, FoundMessage, describe_all
from penstock.console.replication import BrokerReplication
from penstock.errors import (
    BadMessage,
    BadRequest,
    BadSettings,
    NoAnswer,
    NoRoute,
    PenstockError,
    Refused,
    Unreachable,
)
from penstock.protocol.codes import ResponseCode

EXACT: Final = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""
_PRINTABLE: Final = r"^[^\x00-\x1f]*$"
_MAX_ROWS: Final = 500
_STATUS: Final[tuple[tuple[type[PenstockError], int], ...]] = (
    (NoRoute, 404),
    (BadMessage, 400),
    (BadRequest, 400),
    (BadSettings, 400),
    (Refused, 409),
    (Unreachable, 503),
    (NoAnswer, 503),
    (PenstockError, 500),
)
_NOT_FOUND: Final = frozenset(
    {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND}
)


# -- schema ----------------------------------------------------------------------------------------------------------


class Problem(BaseModel):
    """An error, in one sentence."""

    detail: str


class RequestBody(BaseModel):
    """The JSON body of a request. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _whole(value: object) -> object:
    """Turns a whole float such as 4.0 into an integer, because JSON has only one number type."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Name = Annotated[str, Path(min_length=1, max_length=255)]
Topic = Annotated[str, Path(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_-]+$")]
Millis = Annotated[int, Query(ge=0, le=EXACT)]
Most = Annotated[int, Query(ge=1, le=MAX_RESULTS)]


class TopicChange(RequestBody):
    queues: Whole = Field(8, ge=1, le=MAX_QUEUES, description="Read and write queues at each broker.")
    perm: Literal[2, 4, 6] = Field(6, description="2 write, 4 read, 6 both.")
    order: bool = False


class TestMessage(RequestBody):
    body: str = Field(max_length=1 << 20)
    tags: str = Field("", max_length=255, pattern=_PRINTABLE)
    keys: str = Field("", max_length=255, pattern=_PRINTABLE, description="Separated by spaces.")


class Reset(RequestBody):
    topic: str = Field(min_length=1, max_length=255)
    timestamp: Whole = Field(ge=-1, le=EXACT, description="Epoch milliseconds; -1 for the end.")


class Resend(RequestBody):
    ids: list[str] = Field(min_length=1, max_length=MAX_RESULTS, description="Offset message ids of the dead letters.")
    to_topic: bool = Field(
        False, description="To all groups of the original topic, not only to the group of the dead letters."
    )


class NewJob(RequestBody):
    verb: str = Field(max_length=40)
    fields: dict[str, str] = Field(default_factory=dict)


class TopicPage(BaseModel):
    total: int
    topics: list[TopicRow]


class GroupPage(BaseModel):
    total: int
    groups: list[GroupRow]


class JobStatus(BaseModel):
    number: int
    verb: str
    arguments: list[str]
    started_ms: int
    ended_ms: int
    state: JobState
    status: int | None
    way: str = Field(description="Where it runs and why: `on Spark, …` or `without Spark …`; empty until chosen.")
    share: int
    said: list[str]

    @classmethod
    def of(cls, job: Job) -> JobStatus:
        return cls(
            number=job.number,
            verb=job.verb,
            arguments=job.arguments,
            started_ms=job.started_ms,
            ended_ms=job.ended_ms,
            state=job.state,
            status=job.status,
            way=job.way,
            share=job.share,
            said=list(job.log),
        )


class JobResult(JobStatus):
    results: list[Any] = Field(default_factory=list)


# -- routes ----------------------------------------------------------------------------------------------------------


def add_api(app: FastAPI, console: Console) -> None:
    answers: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem} for status in (400, 401, 403, 404, 409, 421, 429, 500, 503)
    }
    router = APIRouter(
        prefix="/api", responses=answers, dependencies=[Security(HTTPBearer(auto_error=False)), Depends(_only_known)]
    )
    _add_reading(router, console)
    _add_topics(router, console)
    _add_groups(router, console)
    _add_messages(router, console)
    _add_store(router, console)
    app.include_router(router)

    @app.exception_handler(PenstockError)
    async def problem(request: Request, error: PenstockError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=_status(error))


async def _only_known(request: Request) -> None:
    """Rejects unknown query parameters, which may be misspelt."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise BadRequest(f"unknown parameter {name[:40]!r}; known parameters: {', '.join(sorted(known)) or 'none'}")


def _status(error: PenstockError) -> int:
    if isinstance(error, Refused) and error.code in _NOT_FOUND:
        return 404
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def _add_reading(router: APIRouter, console: Console) -> None:
    @router.get("/health", tags=["cluster"])
    async def health() -> Health:
        """The worst state of all brokers: recovering, serving, read-only, full or unreachable."""
        return await check_health(console.view, console.parent)

    @router.get("/brokers", tags=["cluster"])
    async def brokers() -> list[BrokerFigures]:
        """The runtime figures of each broker."""
        return await console.view.brokers()

    @router.get("/replication", tags=["cluster"])
    async def replication() -> list[BrokerReplication]:
        """Masters, slaves and replication lag; RocketMQ 4 brokers do not report it."""
        return await console.view.replication()

    @router.get("/history", tags=["cluster"])
    async def history(last: Annotated[int, Query(ge=1, le=900)] = 150) -> list[Sample]:
        """Rates, latency and backlog, sampled every two seconds."""
        return list(console.chart_samples.samples)[-last:]


def _add_topics(router: APIRouter, console: Console) -> None:
    @router.get("/topics", tags=["topics"])
    async def topics(
        contains: Annotated[str, Query(max_length=255)] = "",
        kind: TopicKind | None = None,
        first: Annotated[int, Query(ge=0, le=EXACT)] = 0,
        most: Annotated[int, Query(ge=1, le=_MAX_ROWS)] = 100,
    ) -> TopicPage:
        """One page of topics, by name."""
        rows = [
            row
            for row in await console.view.topics()
            if contains.lower() in row.name.lower() and kind in (None, row.kind)
        ]
        return TopicPage(total=len(rows), topics=rows[first : first + most])

    @router.get("/topics/{topic}", tags=["topics"])
    async def topic(topic: Name) -> TopicFigures:
        """The queues of a topic, and its rate."""
        return await console.view.topic(topic)

    @router.put("/topics/{topic}", tags=["topics"])
    async def change_topic(topic: Topic, change: TopicChange) -> CommandResult:
        """Creates or changes a topic."""
        return await console.commands.create_topic(topic, queues=change.queues, perm=change.perm, order=change.order)

    @router.delete("/topics/{topic}", tags=["topics"])
    async def delete_topic(topic: Topic) -> CommandResult:
        """Deletes a topic at all brokers."""
        await console.view.topic(topic)  # raises NoRoute if it does not exist
        return await console.commands.delete_topic(topic)

    @router.post("/topics/{topic}/messages", tags=["topics"])
    async def send(topic: Topic, message: TestMessage) -> CommandResult:
        """Sends one message."""
        return await console.commands.send_test(topic, message.body, tags=message.tags, keys=message.keys)


def _add_groups(router: APIRouter, console: Console) -> None:
    @router.get("/groups", tags=["groups"])
    async def groups(
        contains: Annotated[str, Query(max_length=255)] = "",
        first: Annotated[int, Query(ge=0, le=EXACT)] = 0,
        most: Annotated[int, Query(ge=1, le=_MAX_ROWS)] = 100,
    ) -> GroupPage:
        """Consumer groups, largest lag first."""
        rows = [row for row in await console.view.groups() if contains.lower() in row.name.lower()]
        rows.sort(key=lambda row: (-row.lag, row.name))
        return GroupPage(total=len(rows), groups=rows[first : first + most])

    @router.get("/groups/{group}", tags=["groups"])
    async def group(group: Name) -> GroupFigures:
        """One group: its queues, clients and subscriptions."""
        await _check_group(console, group)
        return await console.view.group(group)

    @router.post("/groups/{group}/reset/preview", tags=["groups"])
    async def preview(group: Name, reset: Reset) -> list[QueueMove]:
        """The effect of a reset. Changes nothing."""
        await _check_group(console, group)
        return await console.commands.preview_reset(group, reset.topic, reset.timestamp)

    @router.post("/groups/{group}/reset", tags=["groups"])
    async def reset(group: Name, reset: Reset) -> CommandResult:
        """Resets a group's offsets to a time, forwards or backwards."""
        await _check_group(console, group)
        return await console.commands.reset(group, reset.topic, reset.timestamp)


def _add_messages(router: APIRouter, console: Console) -> None:
    @router.get("/messages/by-key", tags=["messages"])
    async def by_key(
        topic: Annotated[str, Query(min_length=1, max_length=255)],
        key: Annotated[str, Query(min_length=1, max_length=1024)],
        begin: Millis = 0,
        end: Millis = EXACT,
        most: Most = 64,
    ) -> list[FoundMessage]:
        """The newest messages with a key, oldest first. Bodies are base64."""
        return describe_all(await console.search.by_key(topic, key, begin, end, most))

    @router.get("/messages/by-id", tags=["messages"])
    async def by_id(
        msg_id: Annotated[str, Query(alias="id", min_length=1, max_length=64)],
        topic: Annotated[str, Query(max_length=255)] = "",
    ) -> list[FoundMessage]:
        """Messages with a broker's id or, given the topic, a producer's."""
        return describe_all(await console.search.by_id(msg_id, topic or None))

    @router.get("/messages/by-time", tags=["messages"])
    async def by_time(
        topic: Annotated[str, Query(min_length=1, max_length=255)], begin: Millis, end: Millis, most: Most = 64
    ) -> list[FoundMessage]:
        """The first messages stored between two times."""
        return describe_all(await console.search.by_time(topic, begin, end, most))

    @router.get("/messages/by-offset", tags=["messages"])
    async def by_offset(
        topic: Annotated[str, Query(min_length=1, max_length=255)],
        broker: Annotated[str, Query(min_length=1, max_length=255)],
        queue_id: Annotated[int, Query(ge=0, lt=2**31)],
        offset: Annotated[int, Query(ge=0, le=EXACT)],
        most: Most = 32,
    ) -> list[FoundMessage]:
        """Messages of one queue, from an offset."""
        return describe_all(await console.search.by_offset(topic, broker, queue_id, offset, most))

    @router.get("/dead-letters", tags=["dead letters"])
    async def dead_letter_groups() -> dict[str, int]:
        """The number of dead letters of each group."""
        return await console.search.dead_letter_groups()

    @router.get("/dead-letters/{group}", tags=["dead letters"])
    async def dead_letters(group: Name, most: Most = 64) -> list[FoundMessage]:
        """A group's dead letters, newest first."""
        return describe_all(await console.search.dead_letters(group, most))

    @router.post("/dead-letters/{group}/resend", tags=["dead letters"])
    async def resend(group: Name, resend: Resend) -> CommandResult:
        """Resends dead letters."""
        letters: list[ReceivedMessage] = []
        for msg_id in resend.ids:
            messages = await console.search.by_id(msg_id)
            if not messages:
                raise NoRoute(f"no message with id {msg_id[:64]}; check the id, or search by key")
            letters += messages
        return await console.commands.resend(letters, to_topic=resend.to_topic)


def _add_store(router: APIRouter, console: Console) -> None:
    @router.get("/store", tags=["store"])
    async def store() -> dict[str, Any]:
        """The store on this machine: the output of `penstock store info`."""
        return await console.store_info()

    @router.get("/jobs", tags=["jobs"])
    async def jobs() -> list[JobStatus]:
        """The jobs started by this console."""
        return [JobStatus.of(job) for job in console.jobs.all.values()]

    @router.post("/jobs", tags=["jobs"], status_code=201)
    async def start(new: NewJob) -> JobStatus:
        """Starts a job: usage, verify, search, export or rebuild. The field `on-spark` with `true` asks for Spark."""
        return JobStatus.of(console.start_job(new.verb, new.fields))

    @router.get("/jobs/{number}", tags=["jobs"])
    async def job(number: Annotated[int, Path(ge=1, le=EXACT)]) -> JobResult:
        """A job's progress and results."""
        job = _job(console, number)
        return JobResult(**JobStatus.of(job).model_dump(), results=job.results)

    @router.delete("/jobs/{number}", tags=["jobs"])
    async def cancel(number: Annotated[int, Path(ge=1, le=EXACT)]) -> JobStatus:
        """Cancels a running job."""
        job = _job(console, number)
        await console.jobs.cancel(job)
        return JobStatus.of(job)


def _job(console: Console, number: int) -> Job:
    job = console.jobs.all.get(number)
    if job is None:
        raise NoRoute(f"no job {number}; see /api/jobs")
    return job


async def _check_group(console: Console, group: str) -> None:
    if group not in await console.view.progress():
        raise NoRoute(f"no consumer group {group!r}; see /api/groups")
