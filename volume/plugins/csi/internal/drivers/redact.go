package drivers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// maxMessage bounds what a driver can make an error say, and maxSecrets what is kept for that.
// A secret shorter than minSecret would take parts of words out of other calls' messages.
const (
	maxMessage = 2048
	maxSecrets = 4096
	minSecret  = 6
)

// sentSecrets are the secrets that drivers were sent: a driver may repeat them in another answer,
// such as that about a volume's health. The zero value has none.
type sentSecrets struct {
	mu  sync.Mutex
	all map[string]struct{}
}

func (s *sentSecrets) add(secrets []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range secrets {
		if len(one) < minSecret {
			continue
		}
		if s.all == nil {
			s.all = make(map[string]struct{})
		}
		if s.all[one] = struct{}{}; len(s.all) <= maxSecrets {
			continue
		}
		for any := range s.all {
			if any != one {
				delete(s.all, any)
				break
			}
		}
	}
}

// Redact takes the secrets that drivers were sent, and control characters, out of a driver's
// message.
func (s *Set) Redact(message string) string { return s.redactFor(nil, message) }

// redactFor is Redact for the answer to a call with secrets of its own.
func (s *Set) redactFor(own []string, message string) string {
	s.sent.mu.Lock()
	defer s.sent.mu.Unlock()
	return Redact(message, slices.AppendSeq(slices.Clone(own), maps.Keys(s.sent.all)))
}

// Redact takes secrets and control characters out of a driver's message.
func Redact(message string, secret []string) string {
	longest := slices.SortedFunc(slices.Values(secret), func(a, b string) int { return len(b) - len(a) })
	for _, s := range longest {
		if s != "" {
			message = strings.ReplaceAll(message, s, "***")
		}
	}
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, "?"))
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " …"
	}
	return message
}

// maxShown is the longest name or path that is shown as it is.
const maxShown = 200

// Shown returns a name or a path for a sentence: as it is, or quoted and cut if it is long or
// would break a line.
func Shown(name string) string {
	if len(name) <= maxShown && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return name
	}
	return fmt.Sprintf("%.128q", name)
}
