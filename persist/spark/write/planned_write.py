"""A batch write as planned on the driver: what it writes to, what rows mean, and what the commit is to say.

A write has a token in any case, the user's or one drawn here: a commit that is tried again, after it was not known
whether it landed, is then recognised, and never deletes what it has committed itself.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from persist.antichain import Antichain
from persist.client import Client
from persist.client import open as open_client
from persist.codecs import Part
from persist.errors import FrontierRegression, InvalidUsage, UpdateNotBeyondUpper, UpdatesBeyondUpper
from persist.spark.options.write import WriteOptions
from persist.spark.write.updates import Rows
from persist.spark.write.uploads import Target, writing


@dataclass(frozen=True)
class PlannedWrite:
    """A batch write.

    Attributes:
        upper: that of the collection when this was planned.
        is_done: whether the token says that it was done before: then nothing is uploaded any more.
    """

    target: Target
    rows: Rows
    seal: Antichain | None
    token: str
    upper: Antichain
    is_done: bool

    @classmethod
    def append(cls, options: WriteOptions, schema: StructType) -> "PlannedWrite":
        """Plan to append, and check what can be checked before any task starts.

        Raises:
            CollectionNotFound, SchemaMismatch, UpdateNotBeyondUpper, FrontierRegression, InvalidUsage.
        """
        with open_client(options.location, mode="read", storage_options=options.storage) as client:
            planned = cls._of(client, options, options.time, options.seal)
        planned.rows.check(schema)
        if not planned.is_done:
            planned._check_frontiers()
        return planned

    @classmethod
    def overwrite(cls, options: WriteOptions, schema: StructType) -> "PlannedWrite":
        """Plan to write what makes the contents those of a DataFrame: by default at upper, sealed.

        Raises:
            UpdatesBeyondUpper: somebody appends to the collection.
            CollectionNotFound, SchemaMismatch, UpdateNotBeyondUpper, FrontierRegression, InvalidUsage.
        """
        if taken := sorted({"_time", "_diff"} & set(schema.names)):
            raise InvalidUsage(
                f'mode "overwrite" takes the rows that are to be there, and the DataFrame has {" and ".join(taken)}. '
                'Drop these columns, and say the time with the option time; or use mode "append" for updates.'
            )
        with open_client(options.location, mode="read", storage_options=options.storage) as client:
            contents = client.load(options.collection).handle.contents()
            time = contents.upper.time if options.time is None else options.time
            if time is None and options.token not in contents.tokens:
                raise UpdateNotBeyondUpper(options.time or 0, contents.upper)
            time = time or 0
            planned = cls._of(client, options, time, Antichain(time + 1) if options.seal is None else options.seal)
            latest = max((part.time_max for part in contents.history_parts), default=-1)
        planned.rows.check(schema)
        if not planned.is_done:
            if planned.upper.has_beyond(latest):
                raise UpdatesBeyondUpper(planned.upper, latest)
            planned._check_frontiers()
        return planned

    @classmethod
    def _of(cls, client: Client, options: WriteOptions, time: int | None, seal: Antichain | None) -> "PlannedWrite":
        collection = client.load(options.collection)
        contents = collection.handle.contents()
        target = Target.of(collection, options.location, options.storage)
        rows, token = Rows(collection.schema, time), options.token or uuid.uuid4().hex
        return cls(target, rows, seal, token, contents.upper, token in contents.tokens)

    def commit(self, parts: Sequence[Part], *, replaces: bool = False) -> None:
        """Commit parts, and the seal, as one record; of a commit that is rejected, the parts are deleted.

        Args:
            replaces: they are the difference from the contents of the last sealed time, so that nobody else may have
                added anything to these.
        """
        with writing(self.target.location, self.target.storage) as client:
            collection = self.target.at(client)
            with client.multi_write(token=self.token) as multi:
                if replaces:
                    multi.expect_upper(collection, self.upper, alone=True)
                multi.add_parts(collection, parts)
                if self.seal is not None:
                    self._check_seal(max((part.time_max for part in parts), default=-1))
                    multi.seal(collection, self.seal)

    def _check_frontiers(self) -> None:
        if self.rows.time is not None and not self.upper.has_beyond(self.rows.time):
            raise UpdateNotBeyondUpper(self.rows.time, self.upper)
        if self.seal is not None:
            if not self.upper <= self.seal:
                raise FrontierRegression("upper", self.seal, self.upper)
            if self.rows.time is not None:
                self._check_seal(self.rows.time)

    def _check_seal(self, latest: int) -> None:
        assert self.seal is not None
        if self.seal.has_beyond(latest):
            raise InvalidUsage(
                f"seal={self.seal.time} is not beyond the data, whose latest time is {latest}: what is sealed to is "
                f"complete, and this would be left out. Seal to {latest + 1} or later, or write without a seal."
            )
