package dev.persist.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.RowOrdering;
import org.apache.spark.sql.catalyst.expressions.SortArray;
import org.apache.spark.sql.catalyst.expressions.aggregate.CollectList;
import org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.BROADCAST$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The rule that replaces a join with the keys of a tail by a filter with {@link IsAmong}.
 *
 * <p>{@code read_functions/plans.py} marks such joins by the names of columns. A join would search a hash table for each
 * row, and the hash tables of large tails do not fit the caches of a processor. The rule runs after Spark has pushed
 * conditions down.
 */
final class KeyFilter extends Rule<LogicalPlan> {
  private static final String GONE = "_persist_gone_";

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    return plan.transformUpWithSubqueries(Functions.where(KeyFilter::filter));
  }

  /** Return the filter in place of a marked join; null for other nodes. */
  private static LogicalPlan filter(LogicalPlan node) {
    if (!(node instanceof Join join)) return null;
    boolean isAnti = join.joinType() == LeftAnti$.MODULE$;
    if (!isAnti && join.joinType() != LeftSemi$.MODULE$) return null;
    if (!join.right().output().forall(Functions.of(column -> column.name().startsWith(GONE)))
        || !join.hint().rightHint().exists(Functions.of(hint -> hint.strategy().contains(BROADCAST$.MODULE$)))) return null;
    var found = ExtractEquiJoinKeys.unapply(join);
    if (found.isEmpty() || found.get()._4().isDefined()) return null;
    LogicalPlan gone = join.right();
    for (Expression key : CollectionConverters.asJava(found.get()._3()))
      if (key.nullable()) gone = new Filter(new IsNotNull(key), gone);
    Expression key = keyOf(found.get()._2());
    Expression goneKey = keyOf(found.get()._3());
    if (!key.dataType().sameType(goneKey.dataType()) || !RowOrdering.isOrderable(key.dataType())) return null;
    Expression all = new SortArray(new CollectList(goneKey).toAggregateExpression());
    NamedExpression column = Rewrite.alias(all, GONE + "keys");
    LogicalPlan keys = new Aggregate(Rewrite.seq(List.of()), Rewrite.seq(List.of(column)), gone, Option.empty());
    Expression isAmong = new IsAmong(Rewrite.subquery(keys), key);
    return new Filter(isAnti ? new Not(isAmong) : isAmong, join.left());
  }

  /** Return a single key column as it is, several as a struct. */
  private static Expression keyOf(scala.collection.immutable.Seq<Expression> terms) {
    if (terms.length() == 1) return terms.head();
    List<Expression> named = new ArrayList<>();
    for (Expression term : CollectionConverters.asJava(terms)) {
      named.add(Literal.create("_" + named.size(), DataTypes.StringType));
      named.add(term);
    }
    return new CreateNamedStruct(Rewrite.seq(named));
  }
}
