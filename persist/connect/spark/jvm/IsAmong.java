package dev.persist.spark;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeBlock;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.FalseLiteral$;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * Whether a key is in a sorted array, which a subquery computes once for a query. NULL is not in it.
 *
 * <p>Generated code remembers where it found the last key, and begins there; see {@link SortedKeys}.
 */
public final class IsAmong extends Expression implements Serializable {
  private final Expression keys;
  private final Expression key;
  private transient volatile SortedKeys sorted;

  public IsAmong(Expression keys, Expression key) {
    this.keys = keys;
    this.key = key;
  }

  private SortedKeys sorted() {
    if (sorted == null) sorted = SortedKeys.of((ArrayData) keys.eval(null), key.dataType());
    return sorted;
  }

  @Override
  public Object eval(InternalRow row) {
    Object value = key.eval(row);
    return value != null && sorted().contains(value);
  }

  @Override
  public ExprCode doGenCode(CodegenContext context, ExprCode code) {
    SortedKeys known = sorted();
    String kind = known.getClass().getName();
    String reference = context.addReferenceObj("keys", known, kind);
    String all = context.addMutableState(kind, "keys", Functions.of(name -> name + " = " + reference + ";"), true, true);
    String at = context.addMutableState("int", "at", Functions.of(name -> ""), true, true);
    ExprCode value = key.genCode(context);
    String argument = known.argument(value.value().code());
    String text = """
        boolean %1$s = false;
        if (!%2$s) {
          %3$s = %4$s.find(%3$s, %5$s);
          %1$s = %4$s.has(%3$s, %5$s);
        }
        """.formatted(code.value().code(), value.isNull().code(), at, all, argument);
    CodeBlock block = new CodeBlock(Rewrite.seq(List.of(text)), Rewrite.seq(List.of()));
    return code.copy(value.code().$plus(block), FalseLiteral$.MODULE$, code.value());
  }

  @Override
  public Seq<Expression> children() {
    return Rewrite.seq(List.of(keys, key));
  }

  @Override
  public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
    return new IsAmong(children.apply(0), children.apply(1));
  }

  @Override
  public DataType dataType() {
    return DataTypes.BooleanType;
  }

  @Override
  public boolean nullable() {
    return false;
  }

  @Override
  public Object productElement(int at) {
    return at == 0 ? keys : key;
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof IsAmong;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof IsAmong same && keys.equals(same.keys) && key.equals(same.key);
  }
}
