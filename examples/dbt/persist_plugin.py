"""A plugin of dbt-duckdb: models that are views of persist, and collections as sources at a time.

`macros/persist_view.sql` hands the compiled query of a model to `Plugin.store`, which brings the view of that name to
this query, refreshes it, and writes what it held at its upper to a file that DuckDB reads. dbt tests each model before
it runs the next one, so each model is a commit and a refresh of its own; views that it reads are up to date already.

A source names the plugin in its `meta`, and a time if it shall not be the latest:

    sources:
      - name: shop
        meta: {plugin: persist, as_of: "2026-11-23T12:00Z"}
        tables: [{name: raw_orders}]

A sealed time reads the same for ever, so a file of one is written once.
"""

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import SourceConfig, TargetConfig

import persist
import persist.errors
from persist.sql import Wanted, plan_views


class Plugin(BasePlugin):  # type: ignore[misc]  # dbt-duckdb has no types that mypy could follow.
    """Its configuration: `location`, and `storage_options` of `persist.open`."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Open the location."""
        self.client = persist.open(plugin_config["location"], storage_options=plugin_config.get("storage_options"))

    def default_materialization(self) -> str:
        """Return how DuckDB keeps a source: it reads the file."""
        return "view"

    def load(self, source_config: SourceConfig) -> ds.Dataset:
        """Return what a source holds at its time, for DuckDB."""
        as_of = source_config.get("as_of")
        file = Path("target", "persist", f"{source_config.identifier}@{as_of or 'latest'}.parquet")
        if as_of is None or not file.exists():
            self._write(source_config.identifier, as_of, file)
        return ds.dataset(file)

    def store(self, target_config: TargetConfig) -> None:
        """Bring the view of a model to its query, refresh it, and write what it holds.

        If the query has changed, the view is made anew, and those that read it are, too, in one commit. A reader whose
        query does not fit any more is dropped, as other databases do: it is made again when its model runs.
        """
        name, config = target_config.relation.identifier, target_config.config
        key = config["key"]
        wanted = Wanted(config["sql"], (key,) if isinstance(key, str) else key and tuple(key), config["start"])
        present = {view.name: view for view in map(self._view, self.client.collections()) if view is not None}
        others = {other: Wanted(view.sql, view.definition.key) for other, view in present.items()}
        try:
            plan = plan_views(self.client, others | {name: wanted})
        except persist.errors.InvalidUsage:
            for reader in _readers(name, present):
                self.client.drop(reader).result()
            plan = plan_views(self.client, {name: wanted})
        plan.commit()
        self.client.view(name).refresh()
        self._write(name, None, Path(target_config.location.path))

    def _view(self, name: str) -> persist.View | None:
        try:
            return self.client.view(name)
        except persist.errors.InvalidUsage:
            return None

    def _write(self, name: str, as_of: Any, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        snapshot = self.client.load(name).snapshot("latest" if as_of is None else as_of)
        with pq.ParquetWriter(unfinished, snapshot.schema) as writer:
            for batch in snapshot.to_batches():
                writer.write_batch(batch)
        unfinished.replace(file)


def _readers(name: str, views: dict[str, persist.View]) -> list[str]:
    """Return the views that read a view, and those that read them; who reads comes before what it reads."""
    if name not in views:
        return []
    readers = [other for other, view in views.items() if views[name].id in view.definition.inputs]
    further = [one for reader in readers for one in _readers(reader, views)]
    return list(dict.fromkeys([*further, *readers]))
