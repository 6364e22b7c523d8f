package figures

import (
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Way is one of several ways to do the same.
type Way struct {
	Name string
	// Prepare comes before each round and is not measured. It may be nil.
	Prepare func()
	// Run is a round.
	Run func()
}

// Taken is what a round took.
type Taken struct {
	// Wall is the time by the clock, CPU that of this process on processors, and
	// Children that of child processes that have ended.
	Wall, CPU, Children time.Duration
	// Collector is the garbage collector's part of CPU, by the runtime's estimate at the
	// end of each collection. It is 0 where what was allocated asked for none.
	Collector time.Duration
}

// Measured are a way's rounds.
type Measured struct{ Median, Fastest Taken }

// InTurn measures ways in turn for some rounds, so that all meet the same weather, and
// returns what each way's rounds took, by its name. Each of a round's times has its own
// median, and its own fastest round. Nothing else may run in this process.
func InTurn(t testing.TB, rounds int, ways ...Way) map[string]Measured {
	t.Helper()
	all := make(map[string][]Taken)
	for range rounds {
		for _, w := range ways {
			if w.Prepare != nil {
				w.Prepare()
			}
			all[w.Name] = append(all[w.Name], Take(t, w.Run))
		}
	}
	measured := make(map[string]Measured)
	for name, taken := range all {
		measured[name] = Measured{Median: pick(taken, len(taken)/2), Fastest: pick(taken, 0)}
	}
	return measured
}

// pick returns the n-th of each time, from the smallest on.
func pick(taken []Taken, n int) Taken {
	nth := func(of func(Taken) time.Duration) time.Duration {
		times := make([]time.Duration, len(taken))
		for i := range taken {
			times[i] = of(taken[i])
		}
		slices.Sort(times)
		return times[n]
	}
	return Taken{
		Wall:      nth(func(x Taken) time.Duration { return x.Wall }),
		CPU:       nth(func(x Taken) time.Duration { return x.CPU }),
		Children:  nth(func(x Taken) time.Duration { return x.Children }),
		Collector: nth(func(x Taken) time.Duration { return x.Collector }),
	}
}

// Take returns what a call of f takes.
func Take(t testing.TB, f func()) Taken {
	t.Helper()
	collector := collected()
	start, cpu, children := time.Now(), used(t, unix.RUSAGE_SELF), used(t, unix.RUSAGE_CHILDREN)
	f()
	return Taken{Wall: time.Since(start), CPU: used(t, unix.RUSAGE_SELF) - cpu, Children: used(t, unix.RUSAGE_CHILDREN) - children,
		Collector: collected() - collector}
}

// used is what processors have done so far for this process, or for its children that have
// ended.
func used(t testing.TB, by int) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(by, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// collected is what the garbage collector has used of processors so far.
func collected() time.Duration {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return time.Duration(sample[0].Value.Float64() * float64(time.Second))
}
