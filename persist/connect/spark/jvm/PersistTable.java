package dev.persist.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A collection as of a time, which is fixed when Spark loads the table, anew for each query.
 *
 * <p>In a query, {@link Rewrite} replaces it by a plan of Spark's own operators. For a write, Spark passes the rows as a
 * {@code Dataset}, which Python writes by tasks as one commit.
 */
class PersistTable extends Contents implements SupportsWrite,
    SupportsRowLevelOperations, SupportsMetadataColumns {
  /** A hidden column for DELETE, UPDATE and MERGE: the whole record, from which its retraction is made. */
  static final String RECORD = "_persist_record";

  final PersistCatalog catalog;
  final String collection;
  private final Expression where;

  PersistTable(PersistCatalog catalog, String collection, JsonNode description) {
    this(catalog, collection, description, null);
  }

  private PersistTable(PersistCatalog catalog, String collection, JsonNode description, Expression where) {
    super(description, null);
    this.catalog = catalog;
    this.collection = collection;
    this.where = where;
  }

  /** Return this table for an overwrite of only the rows that fulfil a condition. */
  PersistTable where(Expression condition) {
    return new PersistTable(catalog, collection, description, condition);
  }

  @Override
  Map<String, Object> arguments(Object... pairs) {
    Map<String, Object> all = catalog.arguments(pairs);
    all.put("name", collection);
    all.put("id", description.get("id").asText());
    all.put("version", description.get("version").asInt());
    all.put("as_of", description.get("as_of").isNull() ? null : description.get("as_of").asLong());
    return all;
  }

  @Override
  public String name() {
    return catalog.name() + "." + collection;
  }

  @Override
  public String id() {
    return description.get("id").asText();
  }

  @Override
  public String version() {
    return description.get("as_of").asText();
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> properties = new HashMap<>();
    description.get("properties").fields().forEachRemaining(one -> properties.put(one.getKey(), one.getValue().asText()));
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ, TableCapability.V1_BATCH_WRITE,
        TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.OVERWRITE_BY_FILTER);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return new MetadataColumn[] {
      new MetadataColumn() {
        @Override
        public String name() {
          return RECORD;
        }

        @Override
        public DataType dataType() {
          return schema();
        }

        @Override
        public boolean isNullable() {
          return false;
        }
      }
    };
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    boolean isDelta = Arrays.asList(info.schema().fieldNames()).contains("_diff");
    return new Builder(where != null ? "overwrite" : isDelta ? "apply" : "insert", info);
  }

  private final class Builder implements SupportsTruncate {
    private String call;
    private final LogicalWriteInfo info;

    Builder(String call, LogicalWriteInfo info) {
      this.call = call;
      this.info = info;
    }

    @Override
    public WriteBuilder truncate() {
      call = "overwrite";
      return this;
    }

    @Override
    public Write build() {
      return new V1Write() {
        @Override
        public InsertableRelation toInsertableRelation() {
          return (Dataset<Row> rows, boolean overwrite) -> Python.ask(call,
              arguments("where", where == null ? null : where.sql(), "options", info.options().asCaseSensitiveMap()), rows,
              where == null ? null : ExpressionUtils.column(where));
        }

        /** Streams are written by the data source, whose batches are committed exactly once. */
        @Override
        public StreamingWrite toStreaming() {
          Map<String, String> options = new HashMap<>(info.options().asCaseSensitiveMap());
          Python.ask("stream_options", arguments()).fields()
              .forEachRemaining(one -> options.put(one.getKey(), one.getValue().asText()));
          TableProvider source =
              DataSource.lookupDataSourceV2("persist", SparkSession.active().sessionState().conf()).get();
          SupportsWrite table = (SupportsWrite) source.getTable(info.schema(), new Transform[0], options);
          LogicalWriteInfo named = new LogicalWriteInfoImpl(info.queryId(), info.schema(),
              new CaseInsensitiveStringMap(options), info.rowIdSchema(), info.metadataSchema());
          WriteBuilder builder = table.newWriteBuilder(named);
          if (call.equals("overwrite")) builder = ((SupportsTruncate) builder).truncate(); // The source refuses it.
          return builder.build().toStreaming();
        }
      };
    }
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new Operation(info.command());
  }

  /** DELETE, UPDATE or MERGE: Spark computes old and new records, and {@link Rewrite} turns them into updates. */
  private final class Operation implements SupportsDelta {
    private final RowLevelOperation.Command command;

    Operation(RowLevelOperation.Command command) {
      this.command = command;
    }

    @Override
    public RowLevelOperation.Command command() {
      return command;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return PersistTable.this.newScanBuilder(options);
    }

    @Override
    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      throw new IllegalStateException("the rewriting of this operation did not run");
    }

    @Override
    public NamedReference[] rowId() {
      return new NamedReference[] {Expressions.column(RECORD)};
    }

    @Override
    public boolean representUpdateAsDeleteAndInsert() {
      return true;
    }
  }
}
