"""The declaration of a setting of the server: one field of a section, and nothing elsewhere.

`kproxy serve --help`, the variable of the environment, the settings file, the line about a wrong
value, DescribeConfigs and docs/settings.md all come from it.
"""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ByteSize, Field, PositiveInt

MIB = 1 << 20


def _whole_bytes(value: Any) -> Any:
    """Convert text of plain digits to bytes; 64MiB and 1GB are left as they are."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


Bytes = Annotated[ByteSize, BeforeValidator(_whole_bytes), Field(gt=0)]
CommitBytes = Annotated[Bytes, Field(le=1024 * MIB)]
Count = PositiveInt
Ms = PositiveInt


def mib(count: int) -> ByteSize:
    return ByteSize(count * MIB)


def setting(default: Any, meaning: str, *, value: str = "", kafka: str = "") -> Any:
    """Return the field of a setting.

    `value`: the form of its value, where its type does not say so. `kafka`: the broker's setting
    that it is in Kafka; LONG behind it, where it is no INT.
    """
    more: Any = {"kafka": kafka} if kafka else None
    return Field(default, description=meaning, title=value or None, json_schema_extra=more)


class Section(BaseModel):
    """Settings that stand together in the help, under the title of the class."""

    NAMES_ARE_KAFKAS: ClassVar[bool] = False
    """Whether each is a setting of Kafka's brokers, with `_` for `.`."""
