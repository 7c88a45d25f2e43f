package dev.persist.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The files of parts, for Spark's Parquet scan. Their sizes are known from descriptors, so planning needs no request. */
public final class PartFiles implements FileIndex {
  private final List<Path> paths = new ArrayList<>();
  private final List<FileStatusWithMetadata> files = new ArrayList<>();
  private long bytes;

  private PartFiles(String[] named) {
    for (int at = 0; at < named.length; at += 2) {
      Path path = new Path(named[at]);
      long length = Long.parseLong(named[at + 1]);
      FileStatus status = new FileStatus(length, false, 1, length, 0, path);
      paths.add(path);
      files.add(new FileStatusWithMetadata(status, Map$.MODULE$.<String, Object>empty()));
      bytes += length;
    }
  }

  /**
   * Return columns of the rows of files; Python calls this.
   *
   * @param schema of the columns, as JSON
   * @param options of the scan, a JSON object
   * @param named paths, each with its size, all of them separated by NUL
   */
  @SuppressWarnings("unchecked")
  public static Dataset<Row> load(SparkSession session, String schema, String options, String named) {
    StructType columns = ((StructType) DataType.fromJson(schema)).asNullable();
    Map<String, String> texts = Python.convert(Python.parse(options), Map.class);
    HadoopFsRelation relation = new HadoopFsRelation(new PartFiles(named.split("\0")), new StructType(), columns,
        Option.empty(), new ParquetFileFormat(),
        Map$.MODULE$.from(CollectionConverters.asScala(texts)), session);
    return Dataset.ofRows(session, LogicalRelation$.MODULE$.apply(relation, false));
  }

  @Override
  public Seq<Path> rootPaths() {
    return Rewrite.seq(paths);
  }

  @Override
  public Seq<PartitionDirectory> listFiles(Seq<Expression> ofPartitions, Seq<Expression> ofRows) {
    return Rewrite.seq(List.of(new PartitionDirectory(InternalRow.empty(), Rewrite.seq(files))));
  }

  @Override
  public String[] inputFiles() {
    return paths.stream().map(path -> SparkPath.fromPath(path).urlEncoded()).toArray(String[]::new);
  }

  /** Do nothing: parts do not change. */
  @Override
  public void refresh() {}

  @Override
  public long sizeInBytes() {
    return bytes;
  }

  @Override
  public StructType partitionSchema() {
    return new StructType();
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof PartFiles same && paths.equals(same.paths);
  }

  @Override
  public int hashCode() {
    return paths.hashCode();
  }
}
