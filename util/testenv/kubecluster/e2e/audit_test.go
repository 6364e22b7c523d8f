package main

import (
	"strings"
	"testing"
	"time"
)

// Requests are counted once each, those of one user, within the time.
func TestRequestsOf(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC)
	line := func(id, user string, after time.Duration) string {
		return `{"auditID":"` + id + `","verb":"get","requestURI":"/` + id + `","requestReceivedTimestamp":"` + at.Add(after).Format(time.RFC3339Nano) + `","user":{"username":"` + user + `"}}` + "\n"
	}
	log := line("early", "node", -time.Second) + line("a", "node", 0) + line("a", "node", 0) + line("b", "other", time.Second) +
		line("c", "node", 59*time.Second) + line("late", "node", time.Minute) + `{"auditID":"half`
	got, err := requestsOf(strings.NewReader(log), "node", at, at.Add(time.Minute))
	if err != nil || len(got) != 2 || got[0].RequestURI != "/a" || got[1].RequestURI != "/c" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := requestsOf(strings.NewReader("no JSON\n"), "node", at, at); err == nil {
		t.Error("a line that is none of the log is taken")
	}
}
