package dev.persist.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The rule that lets {@code spark.readStream.table("persist.orders")} read the stream of the data source.
 *
 * <p>The rows of the stream are updates, so it has the further columns {@code _time} and {@code _diff}. The rule leaves a
 * table within a larger plan, such as {@code SELECT * FROM STREAM t}, to Spark, which refuses it. The {@code *} would
 * leave these columns out, and retractions would look like insertions.
 */
final class StreamRewrite extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (plan instanceof SubqueryAlias alias) {
      LogicalPlan child = apply(alias.child());
      return child == alias.child() ? plan : new SubqueryAlias(alias.identifier(), child);
    }
    if (!(plan instanceof StreamingRelationV2 relation && relation.table() instanceof PersistTable table)) return plan;
    Map<String, Object> arguments = table.arguments("options", relation.extraOptions().asCaseSensitiveMap());
    LogicalPlan source = Python.rows(null, "stream", arguments).queryExecution().analyzed();
    List<NamedExpression> columns = new ArrayList<>(CollectionConverters.asJava(source.output()));
    for (Attribute wanted : CollectionConverters.asJava(relation.output()))
      columns.replaceAll(column -> column.name().equals(wanted.name()) ? Rewrite.alias((Attribute) column, wanted) : column);
    return new Project(Rewrite.seq(columns), source);
  }
}
