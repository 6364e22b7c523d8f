package nfs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// circuitModel is a circuit that goes through every second, for one server.
type circuitModel struct {
	config   BreakerConfig
	now      int
	failures int
	pause    int // 0: closed
	retryAt  int
	seen     int
	trial    int // number of the attempt; -1: none
	waiting  []modelAttempt
}

type modelAttempt struct{ number, began int }

func seconds(d time.Duration) int { return int(d / time.Second) }

func (m *circuitModel) advance(by int) {
	for range by {
		m.now++
		for len(m.waiting) > 0 && m.waiting[0].began+seconds(m.config.Patience) <= m.now {
			number := m.waiting[0].number
			m.waiting = m.waiting[1:]
			m.forget()
			m.fail(number)
		}
		m.forget()
	}
}

func (m *circuitModel) forget() {
	if m.failures > 0 && m.trial < 0 && m.now-m.seen >= remembers*seconds(m.config.LastPause) {
		m.failures, m.pause = 0, 0
	}
}

func (m *circuitModel) fail(number int) {
	m.failures++
	m.seen = m.now
	switch {
	case number == m.trial:
		m.pause = min(2*m.pause, seconds(m.config.LastPause))
		m.retryAt, m.trial = m.now+m.pause, -1
	case m.pause == 0 && m.failures >= m.config.Failures:
		m.pause = seconds(m.config.FirstPause)
		m.retryAt = m.now + m.pause
	}
}

// begin returns whether the attempt is made, and the one to wait for, or -1.
func (m *circuitModel) begin(number int) (made bool, trial int) {
	if m.pause > 0 && (m.trial >= 0 || m.now < m.retryAt) {
		return false, m.trial
	}
	if m.pause > 0 {
		m.trial = number
	}
	m.waiting = append(m.waiting, modelAttempt{number, m.now})
	return true, -1
}

func (m *circuitModel) end(number int, v verdict) {
	i := slices.IndexFunc(m.waiting, func(a modelAttempt) bool { return a.number == number })
	if i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
	switch {
	case v == answered:
		m.failures, m.pause, m.trial = 0, 0, -1
	case i >= 0 && v == silent, v == refused && m.trial == number:
		m.fail(number)
	case m.trial == number:
		m.trial = -1
	}
	m.forget()
}

func TestCircuitIsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := BreakerConfig{
			Failures:   rapid.IntRange(1, 4).Draw(t, "failures"),
			FirstPause: time.Duration(rapid.IntRange(1, 9).Draw(t, "first pause")) * time.Second,
			LastPause:  time.Duration(rapid.IntRange(9, 70).Draw(t, "last pause")) * time.Second,
			Patience:   time.Duration(rapid.IntRange(1, 20).Draw(t, "patience")) * time.Second,
		}
		start := time.Unix(1000, 0)
		c, m := newCircuit(&config), &circuitModel{config: config, trial: -1}
		var attempts []*attempt
		numberOf := func(a *attempt) int {
			if a == nil {
				return -1
			}
			return slices.Index(attempts, a)
		}
		underWay := make(map[int]bool)
		now := func() time.Time { return start.Add(time.Duration(m.now) * time.Second) }
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				m.advance(rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 800)).Draw(t, "seconds"))
			},
			"it is nearly forgotten": func(t *rapid.T) {
				if rest := m.seen + remembers*seconds(config.LastPause) - 1 - m.now; m.failures > 0 && rest > 0 {
					m.advance(rest)
				}
			},
			"begin": func(t *rapid.T) {
				made, trial := m.begin(len(attempts))
				a, waitFor := c.begin(now())
				if (a != nil) != made || numberOf(waitFor) != trial {
					t.Fatalf("at %d: begun is %v, to wait for is %d; the model: %v, %d", m.now, a != nil, numberOf(waitFor), made, trial)
				}
				if a == nil {
					return
				}
				underWay[len(attempts)] = true
				attempts = append(attempts, a)
			},
			"end": func(t *rapid.T) {
				var all []int
				for number := range underWay {
					all = append(all, number)
				}
				if len(all) == 0 {
					t.Skip("nothing is under way")
				}
				slices.Sort(all)
				number := rapid.SampledFrom(all).Draw(t, "attempt")
				v := rapid.SampledFrom([]verdict{saysNothing, answered, silent, silent, silent, refused}).Draw(t, "verdict")
				delete(underWay, number)
				m.end(number, v)
				c.end(attempts[number], now(), v, errors.New("of the test"))
			},
			"": func(t *rapid.T) {
				c.settle(now())
				if c.failures != m.failures || c.isOpen() != (m.pause > 0) || c.isOpen() && !c.retryAt.Equal(start.Add(time.Duration(m.retryAt)*time.Second)) {
					t.Fatalf("at %d: %d failures, open is %v until %v; the model: %+v", m.now, c.failures, c.isOpen(), c.retryAt.Sub(start), m)
				}
				if numberOf(c.trial) != m.trial || c.waiting.Len() != len(m.waiting) {
					t.Fatalf("at %d: the trial is %d, %d wait; the model: %+v", m.now, numberOf(c.trial), c.waiting.Len(), m)
				}
				for number, a := range attempts {
					if a.ended == nil || a == c.trial {
						continue
					}
					select {
					case <-a.ended:
					default:
						t.Fatalf("at %d: those who wait for the trial %d wait for ever", m.now, number)
					}
				}
				// What has no trouble is forgotten.
				if c.failures == 0 && len(m.waiting) == 0 && !c.isForgotten() {
					t.Fatal("it is kept for nothing")
				}
			},
		})
	})
}
