"""What the API takes and tells, besides the values that the console has anyway: the shapes of its OpenAPI schema."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from penstock.console.changing import MOST_QUEUES
from penstock.console.figures import GroupRow, TopicRow
from penstock.console.finding import MOST
from penstock.console.jobs import Job, JobState

EXACT: Final = 2**53 - 1
"""The largest number that every reader of JSON has exactly."""
_PRINTABLE: Final = r"^[^\x00-\x1f]*$"


class Problem(BaseModel):
    """What went wrong, in one sentence."""

    detail: str


class Body(BaseModel):
    """What a request carries; a field that is not known is refused, not passed over."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _whole(value: object) -> object:
    """JSON knows numbers only: 4.0 is as whole as 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Name = Annotated[str, Path(min_length=1, max_length=255)]
Topic = Annotated[str, Path(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_-]+$")]
Millis = Annotated[int, Query(ge=0, le=EXACT)]
Most = Annotated[int, Query(ge=1, le=MOST)]


class TopicChange(Body):
    queues: Whole = Field(8, ge=1, le=MOST_QUEUES, description="Read and write queues at each broker.")
    perm: Literal[2, 4, 6] = Field(6, description="2 write, 4 read, 6 both.")
    order: bool = False


class TestMessage(Body):
    body: str = Field(max_length=1 << 20)
    tags: str = Field("", max_length=255, pattern=_PRINTABLE)
    keys: str = Field("", max_length=255, pattern=_PRINTABLE, description="Several with spaces.")


class Reset(Body):
    topic: str = Field(min_length=1, max_length=255)
    timestamp: Whole = Field(ge=-1, le=EXACT, description="Epoch milliseconds; -1 for what is still to come.")


class Resend(Body):
    ids: list[str] = Field(min_length=1, max_length=MOST, description="Offset message ids of the dead letters.")
    to_topic: bool = Field(False, description="To all groups of their first topic, not only to their own.")


class NewJob(Body):
    verb: str = Field(max_length=40)
    fields: dict[str, str] = Field(default_factory=dict)


class TopicPage(BaseModel):
    total: int
    topics: list[TopicRow]


class GroupPage(BaseModel):
    total: int
    groups: list[GroupRow]


class JobTold(BaseModel):
    number: int
    verb: str
    arguments: list[str]
    started_ms: int
    ended_ms: int
    state: JobState
    status: int | None
    share: int
    said: list[str]

    @classmethod
    def of(cls, job: Job) -> JobTold:
        return cls(
            number=job.number,
            verb=job.verb,
            arguments=job.arguments,
            started_ms=job.started_ms,
            ended_ms=job.ended_ms,
            state=job.state,
            status=job.status,
            share=job.share,
            said=list(job.said),
        )


class JobResult(JobTold):
    results: list[Any] = Field(default_factory=list)
