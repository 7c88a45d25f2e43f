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
 * The rule that makes {@code spark.readStream.table("persist.orders")} the stream of the data source.
 *
 * <p>Its rows are updates, so the columns {@code _time} and {@code _diff} come with those of the table. That is why a
 * table within a larger plan, as in {@code SELECT * FROM STREAM t}, is left to Spark, which refuses it: its {@code *}
 * would leave them out, and a row that goes would look like one that comes.
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
