package dev.persist.spark;

import java.util.Arrays;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogContext.DeduplicationMode;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The updates of a collection in a range of times: {@code SELECT … FROM orders CHANGES FROM VERSION 10 TO VERSION 20}. */
final class PersistChangelog implements Changelog {
  final PersistTable table;
  private final ChangelogRange range;

  private final boolean isKeyed;

  /** Spark pairs deletions and insertions by key only for keyed collections, where each key has one row. */
  PersistChangelog(PersistTable table, ChangelogContext context) {
    this.table = table;
    this.range = context.range();
    this.isKeyed = table.description.get("keyed").asBoolean();
    boolean isPaired = context.computeUpdates() || context.deduplicationMode() == DeduplicationMode.NET_CHANGES;
    if (isPaired && !isKeyed)
      throw PersistException.of("keys of " + table.collection + " may have several rows, so their changes are not "
          + "paired: leave out computeUpdates and deduplicationMode, or use persist.spark.changes(…, form=\"transitions\")");
  }

  /** Return the arguments of the call that reads these changes. */
  Map<String, Object> arguments() {
    if (range instanceof ChangelogRange.VersionRange versions)
      return table.arguments("kind", "version", "start", versions.startingVersion(), "end",
          versions.endingVersion().orElse(null), "from_inclusive", versions.startingBoundInclusive(), "to_inclusive",
          versions.endingBoundInclusive());
    if (range instanceof ChangelogRange.TimestampRange moments)
      return table.arguments("kind", "timestamp", "start", moments.startingTimestamp(), "end",
          moments.endingTimestamp().orElse(null), "from_inclusive", moments.startingBoundInclusive(), "to_inclusive",
          moments.endingBoundInclusive());
    return table.arguments("kind", "version", "start", null, "end", null, "from_inclusive", true, "to_inclusive", true);
  }

  @Override
  public String name() {
    return table.name() + ".changes";
  }

  @Override
  public Column[] columns() {
    Column[] added = {
      Column.create("_change_type", DataTypes.StringType, false),
      Column.create("_commit_version", DataTypes.LongType, false),
      Column.create("_commit_timestamp", DataTypes.TimestampType, true),
    };
    return Stream.concat(Arrays.stream(table.columns()), Arrays.stream(added)).toArray(Column[]::new);
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  @Override
  public boolean containsIntermediateChanges() {
    return isKeyed;
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return isKeyed;
  }

  @Override
  public NamedReference[] rowId() {
    return Stream.of(table.properties().getOrDefault("key", "").split(","))
        .filter(name -> !name.isEmpty()).map(Expressions::column).toArray(NamedReference[]::new);
  }

  @Override
  public NamedReference rowVersion() {
    return Expressions.column("_commit_version");
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(options);
  }
}
