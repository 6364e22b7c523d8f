package index

import "iter"

// few is a map that almost always has one key, for which it allocates nothing. The zero value is
// empty. It is a value: what put and without return replaces it.
type few[K comparable, V any] struct {
	key   K
	value V
	count int // 1: key and value are all
	more  map[K]V
}

func (f few[K, V]) put(key K, value V) few[K, V] {
	if f.more == nil && (f.count == 0 || f.key == key) {
		return few[K, V]{key: key, value: value, count: 1}
	}
	if f.more == nil {
		f = few[K, V]{more: map[K]V{f.key: f.value}}
	}
	f.more[key] = value
	f.count = len(f.more)
	return f
}

func (f few[K, V]) without(key K) few[K, V] {
	if f.more == nil {
		if f.count == 1 && f.key == key {
			return few[K, V]{}
		}
		return f
	}
	delete(f.more, key)
	f.count = len(f.more)
	return f
}

func (f few[K, V]) get(key K) (value V) {
	if f.more != nil {
		return f.more[key]
	}
	if f.count == 1 && f.key == key {
		return f.value
	}
	return value
}

// all yields the keys and values, in no order.
func (f few[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if f.more == nil && f.count == 1 {
			yield(f.key, f.value)
		}
		for key, value := range f.more {
			if !yield(key, value) {
				return
			}
		}
	}
}
