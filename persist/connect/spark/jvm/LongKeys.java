package dev.persist.spark;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataType;

/** Keys that become 64-bit integers in the same order: numbers, dates and moments. */
public final class LongKeys extends SortedKeys {
  private final long[] keys;

  LongKeys(ArrayData keys, DataType type) {
    this.keys = Arrays.stream(keys.toObjectArray(type)).mapToLong(value -> of((Number) value)).toArray();
  }

  static boolean isFor(DataType type) {
    return switch (CodeGenerator.javaType(type)) {
      case "byte", "short", "int", "long", "float", "double" -> true;
      default -> false;
    };
  }

  public static long of(long value) {
    return value;
  }

  /** Return an integer in the order of the value: both zeros are equal, and NaN is last. */
  public static long of(double value) {
    long bits = Double.doubleToLongBits(value == 0 ? 0 : value);
    return bits ^ (bits >> 63 & Long.MAX_VALUE);
  }

  private static long of(Number value) {
    return value instanceof Double || value instanceof Float ? of(value.doubleValue()) : of(value.longValue());
  }

  public int find(int at, long key) {
    if (at > 0 && keys[at - 1] >= key) return search(0, at, key);
    for (int end = Math.min(at + NEAR, keys.length); at < end; at++) if (keys[at] >= key) return at;
    return search(at, keys.length, key);
  }

  private int search(int from, int to, long key) {
    int at = Arrays.binarySearch(keys, from, to, key);
    return at < 0 ? -at - 1 : at;
  }

  public boolean has(int at, long key) {
    return at < keys.length && keys[at] == key;
  }

  @Override
  String argument(String value) {
    return LongKeys.class.getName() + ".of(" + value + ")";
  }

  @Override
  boolean contains(Object value) {
    return Arrays.binarySearch(keys, of((Number) value)) >= 0;
  }
}
