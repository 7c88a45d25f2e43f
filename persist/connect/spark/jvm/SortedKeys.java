package dev.persist.spark;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataType;

/**
 * Keys in Spark's order, without NULL. A search begins where the one before it ended.
 *
 * <p>The rows of a part are sorted by key. So the next key is mostly found at the same index or a few further, which takes
 * a nanosecond. Otherwise it is found by binary search, so rows may have any order.
 *
 * <p>Each subclass has two methods for generated code. {@code find(at, key)} returns the index of the first key that is
 * not less, and begins at index {@code at}. {@code has(at, key)} returns whether the key at an index is equal.
 */
abstract class SortedKeys implements Serializable {
  /** The number of keys that a search compares in turn, before binary search. */
  static final int NEAR = 8;

  static SortedKeys of(ArrayData keys, DataType type) {
    return LongKeys.isFor(type) ? new LongKeys(keys, type) : new ObjectKeys(keys, type);
  }

  /** Return Java code that converts a value, whose code is {@code value}, to an argument of {@code find}. */
  abstract String argument(String value);

  /** Return whether a value of Spark is among the keys. */
  abstract boolean contains(Object value);
}
