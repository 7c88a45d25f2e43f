from .egress.driver import Egressed as Egressed
from .egress.sink import Leaving as Leaving
from .egress.sink import Piece as Piece
from .egress.sink import Reached as Reached
from .egress.sink import Sink as Sink
from .egress.sink import Standing as Standing
from .ingest.driver import Ingested as Ingested
from .ingest.kafka.config import Brokers as Brokers
from .ingest.source import Batch as Batch
from .ingest.source import Change as Change
from .ingest.source import Run as Run
from .ingest.source import Source as Source
from .ingest.source import SourceMoved as SourceMoved
from .ingest.source import Target as Target

__all__: list[str]
