package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// The API server writes down who has asked for what.
const (
	auditPolicy = base + "/cluster/audit-policy.json"
	auditLog    = base + "/cluster/audit.log"
)

func auditing() []string {
	return []string{"--audit-policy-file=" + auditPolicy, "--audit-log-path=" + auditLog}
}

// writeAuditPolicy has one line written for each request, at its end, or at the start of
// its answer where that goes on.
func writeAuditPolicy() error {
	policy, err := json.Marshal(object{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": []string{"RequestReceived"},
		"rules": []object{{"level": "Metadata", "userGroups": []string{"system:nodes"}}, {"level": "None"}}})
	if err != nil {
		return err
	}
	return os.WriteFile(auditPolicy, policy, 0o600)
}

// request is one line of the audit log.
type request struct {
	AuditID                  string
	Verb, RequestURI         string
	RequestReceivedTimestamp time.Time
	User                     struct{ Username string }
}

// requestsOf are those that a user has sent between two times.
func requestsOf(log io.Reader, user string, from, to time.Time) ([]request, error) {
	var all []request
	seen := make(map[string]bool)
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil // what follows the last new line is still being written
		}
		if err != nil {
			return nil, err
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		at := r.RequestReceivedTimestamp
		if r.User.Username == user && !at.Before(from) && at.Before(to) && !seen[r.AuditID] {
			seen[r.AuditID] = true
			all = append(all, r)
		}
	}
}
