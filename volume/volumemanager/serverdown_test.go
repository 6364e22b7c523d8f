package volumemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// toServer selects the mounts from one server, however it is spelt.
func toServer(server string) func(fakemount.Call) bool {
	return func(c fakemount.Call) bool {
		host, _, _ := strings.Cut(c.Source, ":/")
		return isMount(c) && strings.EqualFold(host, server)
	}
}

func (w *world) attempts(server string) (n int) {
	for _, c := range w.fake.Calls() {
		if toServer(server)(c) {
			n++
		}
	}
	return n
}

// A hundred volumes of a server that is dead for ten minutes: it is asked a
// bounded number of times, all are mounted within one pause of its return, and
// nothing else is delayed.
func TestManyVolumesOfADeadServer(t *testing.T) {
	const many, outage = 100, 10 * time.Minute
	for _, tc := range []struct {
		name string
		// What a mount from it does; it ends by itself, or hangs.
		fault func(back chan struct{}) fakemount.Fault
		// first is when the volumes have failed for the first time; least and most
		// are how often the server may be asked meanwhile.
		first       time.Duration
		least, most int
	}{
		// Every mount of the first wave has its two minutes, then one each
		// 10+15, 20+15, 40+15, 60+15, … seconds.
		{"silent", func(back chan struct{}) fakemount.Fault { return fakemount.Fault{Release: back} }, 2 * time.Minute, many + 5, many + 9},
		// Mounts fail at once, so that three do for all but those that are under way by
		// then, and then there is one each 5, 10, 20, 40, 60, … seconds.
		{"unreachable", func(chan struct{}) fakemount.Fault { return fakemount.Fault{Err: unix.EHOSTUNREACH} }, 0, 3 + 11, many + 13},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				manager, stop := w.start()
				defer stop()
				before := newPod("before", nfsVolume("v", "dead"))
				mustSetUp(t, manager, before)
				back := make(chan struct{})
				fault := tc.fault(back)
				fault.Match = toServer("dead")
				remove := w.fake.Inject(fault)
				w.fake.ResetCalls()
				start := time.Now()
				for n := range many {
					if err := manager.PutPod(newPod(fmt.Sprint("web", n), nfsVolume("v", "dead"))); err != nil {
						t.Fatal(err)
					}
				}
				mustSetUp(t, manager, newPod("other", nfsVolume("v", "alive")))
				if time.Since(start) > 0 {
					t.Errorf("another server's volume took %v", time.Since(start))
				}
				time.Sleep(tc.first + time.Second)
				if row := statusOf(t, manager, "web0"); row.Server.Answers || row.Server.Source != "dead" || !errors.Is(row.Err, mount.ErrTimedOut) {
					t.Errorf("row = %+v", row)
				}

				time.Sleep(outage - time.Since(start))
				asked := w.attempts("dead")
				if asked < tc.least || asked > tc.most {
					t.Errorf("the dead server was asked %d times", asked)
				}
				mustSetUp(t, manager, newPod("another", nfsVolume("v", "alive")))
				if took := time.Since(start); took != outage {
					t.Errorf("another server's volume took %v", took-outage)
				}
				if row := statusOf(t, manager, "before"); row.State != volumemanager.StateMounted || row.Err != nil || row.Server.Answers {
					t.Errorf("what was mounted before: %+v", row)
				}
				if err := manager.TearDownPod(t.Context(), "uid-web99"); err != nil {
					t.Error(err)
				}

				remove()
				close(back)
				limit, cancel := context.WithTimeout(t.Context(), time.Minute+time.Second)
				defer cancel()
				for n := range many - 1 {
					if err := manager.WaitForMounted(limit, types.UID(fmt.Sprint("uid-web", n))); err != nil {
						t.Fatal(err)
					}
				}
				t.Logf("%d attempts during the outage; all mounted %v after it", asked, time.Since(start)-outage)
				if again := w.attempts("dead") - asked; again > many {
					t.Errorf("%d mounts after the return", again)
				}
				if row := statusOf(t, manager, "web0"); !row.Server.Answers || row.Server.Failures != 0 || row.Failures != 0 {
					t.Errorf("row = %+v", row)
				}
			})
		})
	}
}

// Whoever sets a pod up while its server is down hears so at once, and what the
// next attempt waits for.
func TestPodOfADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		remove := w.fake.Inject(fakemount.Fault{Match: toServer("dead"), Err: unix.EHOSTUNREACH})
		for n := range 3 {
			if _, err := manager.SetUpPod(t.Context(), newPod(fmt.Sprint("web", n), nfsVolume("v", "dead"))); err == nil {
				t.Fatal("mounted")
			}
		}
		late := newPod("late", nfsVolume("v", "DEAD"))
		start := time.Now()
		_, err := manager.SetUpPod(t.Context(), late)
		at, ok := volume.RetryAt(err)
		if !errors.Is(err, mount.ErrTimedOut) || !ok || time.Since(start) > 0 {
			t.Errorf("err = %v after %v", err, time.Since(start))
		}
		row := statusOf(t, manager, "late")
		if row.State != volumemanager.StateFailed || !row.NextRetry.Equal(at) || at.Sub(start) != 5*time.Second {
			t.Errorf("the next attempt is in %v: %+v", row.NextRetry.Sub(start), row)
		}
		if text := row.ServerTrouble(); !strings.Contains(text, "dead has not answered since") || !strings.Contains(text, "tried again in 5s") {
			t.Errorf("trouble %q", text)
		}
		if w.records() != nil {
			t.Errorf("records of what was not tried: %v", w.records())
		}
		var out struct {
			Cause  string
			Server struct {
				Name, Error    string
				Answers        *bool
				Failures       int
				Since, RetryAt time.Time
			}
		}
		if text, err := json.Marshal(row); err != nil || json.Unmarshal(text, &out) != nil {
			t.Fatalf("%s, %v", text, err)
		}
		if s := out.Server; out.Cause != "TimedOut" || s.Name != "dead" || s.Answers == nil || *s.Answers || s.Failures != 3 ||
			!s.RetryAt.Equal(at) || !s.Since.Equal(start) || !strings.Contains(s.Error, "no route to host") {
			t.Errorf("JSON %+v", out)
		}

		// Its server returns, but has no such export for a while: the pauses begin
		// anew, whatever the outage lasted.
		time.Sleep(5 * time.Minute)
		remove()
		remove = w.fake.Inject(fakemount.Fault{Match: toServer("DEAD"), Err: mount.ErrNoSuchExport})
		time.Sleep(time.Minute + 3*time.Second)
		row = statusOf(t, manager, "late")
		if !errors.Is(row.Err, mount.ErrNoSuchExport) || time.Until(row.NextRetry) > time.Minute {
			t.Errorf("the next attempt is in %v: %v", time.Until(row.NextRetry), row.Err)
		}
		if row.ServerTrouble() != "" {
			t.Errorf("trouble %q", row.ServerTrouble())
		}
		if text, err := json.Marshal(row); err != nil || strings.Contains(string(text), `"server"`) {
			t.Errorf("JSON %s, %v", text, err)
		}
		remove()
		if err := manager.WaitForMounted(t.Context(), "uid-late"); err != nil {
			t.Error(err)
		}
	})
}

// A pod that is deleted while its mount waits for another to try the server does
// not wait any longer.
func TestDeletionWhileTheServerIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		remove := w.fake.Inject(fakemount.Fault{Match: toServer("dead"), Err: unix.EHOSTUNREACH})
		for n := range 4 {
			if _, err := manager.SetUpPod(t.Context(), newPod(fmt.Sprint("web", n), nfsVolume("v", "dead"))); err == nil {
				t.Fatal("mounted")
			}
		}
		remove()
		w.fake.ResetCalls()
		w.fake.Inject(fakemount.Fault{Match: toServer("dead"), Release: make(chan struct{})})
		time.Sleep(6 * time.Second)
		if n := w.attempts("dead"); n != 1 {
			t.Errorf("%d mounts try the server", n)
		}
		start := time.Now()
		for n := range 4 {
			if row := statusOf(t, manager, fmt.Sprint("web", n)); row.Operation != "set-up" {
				t.Errorf("row = %+v", row)
			}
			if err := manager.TearDownPod(t.Context(), types.UID(fmt.Sprint("uid-web", n))); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
		w.assertClean()
	})
}
