package dev.persist.spark;

import org.apache.spark.sql.connector.catalog.StagedTable;

/** The table of CREATE TABLE AS SELECT, which is dropped if its query fails. */
final class CreatedTable extends PersistTable implements StagedTable {
  CreatedTable(PersistTable table) {
    super(table.catalog, table.collection, table.description);
  }

  @Override
  public void commitStagedChanges() {
    // The rows are committed by then.
  }

  @Override
  public void abortStagedChanges() {
    Python.ask("drop", catalog.arguments("name", collection, "id", id()));
  }
}
