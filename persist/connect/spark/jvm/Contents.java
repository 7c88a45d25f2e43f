package dev.persist.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * The contents of a collection as of a time, as a table. {@link Rewrite} replaces it by a plan of Spark's own operators.
 *
 * <p>A DataFrame of {@code persist.spark.snapshot} has a planner of its own, which lives as long as its plan.
 */
class Contents implements SupportsRead {
  final JsonNode description;
  private final StructType schema;
  private final Planner planner;  // Null for the planner of the catalogs.

  Contents(JsonNode description, Planner planner) {
    this.description = description;
    this.schema = (StructType) DataType.fromJson(description.get("schema").asText());
    this.planner = planner;
  }

  /** Return a DataFrame that reads contents by its own planner; Python calls this. */
  public static Dataset<Row> frame(SparkSession session, Planner planner, String description) {
    Contents contents = new Contents(Python.parse(description), planner);
    return Dataset.ofRows(session, DataSourceV2Relation.create(contents, Option.empty(), Option.empty()));
  }

  /** Call the planner about these contents; return the rows that it answers, or null. */
  Dataset<Row> rows(String call, Object... pairs) {
    return Python.rows(planner, call, arguments(pairs));
  }

  /** Return the arguments of a call about these contents. */
  Map<String, Object> arguments(Object... pairs) {
    Map<String, Object> all = new HashMap<>();
    for (int at = 0; at < pairs.length; at += 2) all.put((String) pairs[at], pairs[at + 1]);
    return all;
  }

  /** Return the key columns by which Python can look rows up; none if it cannot. */
  List<String> keys() {
    return Arrays.asList(Python.convert(description.get("keys"), String[].class));
  }

  @Override
  public String name() {
    return description.get("name").asText();
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ);
  }

  /** Return a scan that only knows the size of contents, for DESCRIBE EXTENDED; it cannot read. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return Size::new;
  }

  private final class Size implements SupportsReportStatistics {
    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public Statistics estimateStatistics() {
      return new Statistics() {
        @Override
        public OptionalLong sizeInBytes() {
          return OptionalLong.of(description.get("bytes").asLong());
        }

        @Override
        public OptionalLong numRows() {
          return OptionalLong.of(description.get("rows").asLong());
        }
      };
    }

    @Override
    public Batch toBatch() {
      throw PersistException.of("tables of persist are read through its extension: set spark.sql.extensions to "
          + "dev.persist.spark.PersistExtensions before the session is created");
    }
  }
}
