package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// secured is a pod whose one container has this security context.
func secured(t *testing.T, context string) string {
	return openFile(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: secured}
spec:
  securityContext: {seccompProfile: {type: RuntimeDefault}}
  containers: [{name: c, image: i, securityContext: {%s}}]
`, context))
}

// What a program that asked for less has is what the kernel says of it.
func TestRunGivesNoMoreThanAskedFor(t *testing.T) {
	const all = 1<<unix.CAP_CHOWN | 1<<unix.CAP_NET_RAW
	tests := []struct {
		context  string
		has, not uint64 // capabilities, effective and in the bounding set
		noNew    bool
		rootOnly bool // its ids are not to be had in a user namespace of one id
	}{
		{context: "", has: all},
		{context: "capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false", not: ^uint64(0), noNew: true},
		{context: "capabilities: {drop: [CAP_NET_RAW]}", has: 1 << unix.CAP_CHOWN, not: 1 << unix.CAP_NET_RAW},
		{context: "capabilities: {drop: [ALL], add: [chown]}", has: 1 << unix.CAP_CHOWN, not: ^uint64(1 << unix.CAP_CHOWN)},
		{context: "capabilities: {drop: [CHOWN], add: [CHOWN, NET_RAW]}", has: 1 << unix.CAP_NET_RAW, not: 1 << unix.CAP_CHOWN},
		{context: "allowPrivilegeEscalation: false", has: all, noNew: true},
		{context: "runAsUser: 1234, capabilities: {drop: [NET_RAW], add: [CHOWN]}", not: ^uint64(0), rootOnly: true},
	}
	nstest.Run(t, func(t *testing.T) {
		users := []*runner{ownProcess(t)}
		if os.Getenv("PODVOL_NSTEST") != "user" {
			users = append(users, asOrdinaryUser(t))
		}
		for _, r := range users {
			mapped := r.root != "" && os.Getenv("PODVOL_NSTEST") != "user"
			for _, test := range tests {
				if test.rootOnly && !mapped {
					r.run(t, exitRunFailed, "run", "-f", secured(t, test.context), "--", "true")
					continue
				}
				out, _ := r.run(t, 0, "run", "-f", secured(t, test.context), "--", "cat", "/proc/self/status")
				status := statusFields(t, out)
				for _, field := range []string{"CapEff", "CapPrm", "CapBnd"} {
					has, err := strconv.ParseUint(status[field], 16, 64)
					if err != nil || has&test.has != test.has || has&test.not != 0 {
						t.Errorf("%q: %s %x, %v; want %x and not %x", test.context, field, has, err, test.has, test.not)
					}
				}
				if got := status["NoNewPrivs"]; got != map[bool]string{false: "0", true: "1"}[test.noNew] {
					t.Errorf("%q: NoNewPrivs %s", test.context, got)
				}
			}
			r.assertNothingLeft(t)
		}
	})
}

func statusFields(t *testing.T, text string) map[string]string {
	t.Helper()
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

func TestRunSaysWhatItDoesNotHonour(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		_, errOut := mustPodvol(t, exitOK, "run", "--root-dir", base, "-f", secured(t, "readOnlyRootFilesystem: true"), "--", "true")
		if !strings.Contains(errOut, `container "c"`) || !strings.Contains(errOut, "readOnlyRootFilesystem, seccompProfile") {
			t.Errorf("stderr %s", errOut)
		}
		_, errOut = mustPodvol(t, exitOK, "run", "--root-dir", base, "-f", secured(t, "seccompProfile: {type: Unconfined}"), "--", "true")
		if errOut != "" {
			t.Errorf("stderr %s", errOut)
		}
		_, errOut = mustPodvol(t, exitRunFailed, "run", "--root-dir", base, "-f", secured(t, "capabilities: {drop: [FLY]}"), "--", "true")
		if !strings.Contains(errOut, `no capability "FLY"`) {
			t.Errorf("stderr %s", errOut)
		}
		assertNoRuns(t, base)
	})
}

// A container's own ids come before the pod's, which are not needed then.
func TestRunNeedsNoIDsThatAreOverridden(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, file := t.TempDir(), openFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: ids}
spec:
  securityContext: {runAsUser: 4294967294, runAsGroup: 4294967294}
  containers: [{name: c, image: i, securityContext: {runAsUser: 0, runAsGroup: 0}}]
`)
		out, _ := mustPodvol(t, exitOK, "run", "--root-dir", base, "-f", file, "--", "sh", "-c", "id -u; id -g")
		if out != "0\n0\n" {
			t.Errorf("%q", out)
		}
	})
}
