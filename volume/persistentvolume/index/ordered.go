package index

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"sort"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Size is an amount of storage that is compared without looking further than
// it must.
type Size struct {
	// bytes is the amount, rounded and cut to what fits.
	bytes int64
	// rest is the amount where bytes is not exact; nil where it is.
	rest *resource.Quantity
}

// SizeOf returns the size that a quantity is.
func SizeOf(q resource.Quantity) Size {
	if bytes, ok := q.AsInt64(); ok {
		return Size{bytes: bytes}
	}
	return roundedSizeOf(q)
}

func roundedSizeOf(q resource.Quantity) Size {
	s := Size{rest: &q}
	switch {
	case q.CmpInt64(math.MaxInt64) >= 0:
		s.bytes = math.MaxInt64
	case q.CmpInt64(math.MinInt64) <= 0:
		s.bytes = math.MinInt64
	default:
		s.bytes = q.Value()
	}
	return s
}

func (s Size) quantity() resource.Quantity {
	if s.rest != nil {
		return *s.rest
	}
	return *resource.NewQuantity(s.bytes, resource.BinarySI)
}

// Compare returns -1, 0 or 1 where s is smaller than, as large as or larger than the other.
func (s Size) Compare(other Size) int {
	if s.bytes != other.bytes || s.rest == nil && other.rest == nil {
		return cmp.Compare(s.bytes, other.bytes)
	}
	mine := s.quantity()
	return mine.Cmp(other.quantity())
}

// item is one volume in an order, with the size beside it: the most frequent
// comparison then looks up nothing elsewhere in memory.
type item struct {
	Size
	pv *v1.PersistentVolume
}

func itemOf(pv *v1.PersistentVolume) item {
	return item{SizeOf(pv.Spec.Capacity[v1.ResourceStorage]), pv}
}

func (e item) compare(other item) int {
	if c := e.Size.Compare(other.Size); c != 0 {
		return c
	}
	return cmp.Compare(e.pv.Name, other.pv.Name)
}

// ordered is a set of volumes by size, then name: the best match first. It is
// kept in runs, so that a change moves one run and not all that follows.
type ordered struct {
	runs  [][]item // none is empty
	count int
}

const (
	longestRun = 128
	// shortRun is how long two neighbours may be together to be joined.
	shortRun = longestRun / 4
)

// run returns the place of the first run that does not end before e.
func (o *ordered) run(e item) int {
	return sort.Search(len(o.runs), func(i int) bool { return o.runs[i][len(o.runs[i])-1].compare(e) >= 0 })
}

func (o *ordered) insert(e item) {
	o.count++
	if len(o.runs) == 0 {
		o.runs = [][]item{{e}}
		return
	}
	i := min(o.run(e), len(o.runs)-1)
	at, _ := slices.BinarySearchFunc(o.runs[i], e, item.compare)
	o.runs[i] = slices.Insert(o.runs[i], at, e)
	if run := o.runs[i]; len(run) > longestRun {
		half := len(run) / 2
		o.runs = slices.Insert(o.runs, i+1, slices.Clone(run[half:]))
		clear(run[half:])
		o.runs[i] = run[:half]
	}
}

// swap puts e in the place of what compares as e.
func (o *ordered) swap(e item) {
	i := o.run(e)
	if i == len(o.runs) {
		return
	}
	if at, found := slices.BinarySearchFunc(o.runs[i], e, item.compare); found {
		o.runs[i][at] = e
	}
}

// remove takes out what compares as e.
func (o *ordered) remove(e item) {
	i := o.run(e)
	if i == len(o.runs) {
		return
	}
	at, found := slices.BinarySearchFunc(o.runs[i], e, item.compare)
	if !found {
		return
	}
	o.count--
	o.runs[i] = slices.Delete(o.runs[i], at, at+1)
	if len(o.runs[i]) == 0 {
		o.runs = slices.Delete(o.runs, i, i+1)
		return
	}
	o.join(i)
	o.join(i - 1)
}

// join makes one run of a run and the next, if they are short.
func (o *ordered) join(i int) {
	next := i + 1
	if i < 0 || next >= len(o.runs) || len(o.runs[i])+len(o.runs[next]) > shortRun {
		return
	}
	o.runs[i] = append(o.runs[i], o.runs[next]...)
	o.runs = slices.Delete(o.runs, next, next+1)
}

// start returns the place of the first volume that is not smaller than s.
func (o *ordered) start(s Size) (run, at int) {
	run = sort.Search(len(o.runs), func(i int) bool { return o.runs[i][len(o.runs[i])-1].Size.Compare(s) >= 0 })
	if run < len(o.runs) {
		at = sort.Search(len(o.runs[run]), func(i int) bool { return o.runs[run][i].Size.Compare(s) >= 0 })
	}
	return run, at
}

// from goes through all that are not smaller than s, in order.
func (o *ordered) from(s Size) iter.Seq[item] {
	run, at := o.start(s)
	return o.at(run, at)
}

func (o *ordered) all() iter.Seq[item] { return o.at(0, 0) }

func (o *ordered) at(run, at int) iter.Seq[item] {
	return func(yield func(item) bool) {
		for run, at := run, at; run < len(o.runs); run, at = run+1, 0 {
			for _, e := range o.runs[run][at:] {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// smaller counts the volumes below s.
func (o *ordered) smaller(s Size) int {
	run, n := o.start(s)
	for _, r := range o.runs[:run] {
		n += len(r)
	}
	return n
}
