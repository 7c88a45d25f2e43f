package dev.persist.spark;

import java.util.Arrays;
import java.util.Comparator;
import org.apache.spark.sql.catalyst.expressions.RowOrdering;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.TypeUtils;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Keys of any type that Spark compares. Tasks get them as an array of Spark, and decode it at the first search. */
public final class ObjectKeys extends SortedKeys {
  private final ArrayData array;
  private final DataType type;
  private transient Object[] keys;
  private transient Comparator<Object> order;

  ObjectKeys(ArrayData array, DataType type) {
    this.array = array;
    this.type = type;
  }

  @SuppressWarnings("unchecked")
  private void open() {
    order = TypeUtils.getInterpretedOrdering(type);
    if (type instanceof StructType row) {  // A compiled comparison.
      Comparator<?> compiled = RowOrdering.createNaturalAscendingOrdering(
          Rewrite.seq(Arrays.stream(row.fields()).map(StructField::dataType).toList()));
      order = (Comparator<Object>) compiled;
    }
    keys = array.toObjectArray(type);
  }

  public int find(int at, Object key) {
    if (keys == null) open();
    if (at > 0 && order.compare(keys[at - 1], key) >= 0) return search(0, at, key);
    for (int end = Math.min(at + NEAR, keys.length); at < end; at++) if (order.compare(keys[at], key) >= 0) return at;
    return search(at, keys.length, key);
  }

  private int search(int from, int to, Object key) {
    int at = Arrays.binarySearch(keys, from, to, key, order);
    return at < 0 ? -at - 1 : at;
  }

  public boolean has(int at, Object key) {
    return at < keys.length && order.compare(keys[at], key) == 0;
  }

  @Override
  String argument(String value) {
    return value;
  }

  @Override
  boolean contains(Object value) {
    return has(find(0, value), value);
  }
}
