package volumemanager_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/volume/volumemanager"
)

// check checks what holds at any time.
func (m *model) check() error {
	if err := invariant.Violations(m.root, m.fake.Table(), map[string]string{filepath.Join(m.served, "data"): "precious"}); err != nil {
		return err
	}
	targets, err := invariant.Mounted("/", m.fake.Table())
	if err != nil {
		return err
	}
	if err := m.checkDevices(targets); err != nil {
		return err
	}
	return m.checkRows(targets)
}

// checkRows compares what the manager says with what is there.
func (m *model) checkRows(targets []string) error {
	rows := m.manager.Explain()
	for _, row := range rows {
		if (row.Plugin == "kubernetes.io/nfs" || row.Plugin == diskPlugin) && row.State == volumemanager.StateMounted && row.Operation == "" && !slices.Contains(targets, row.Path) {
			return fmt.Errorf("volume %s of %s is said to be mounted, and is not", row.Volume, row.PodUID)
		}
		if row.State == volumemanager.StateUnmounted {
			return fmt.Errorf("volume %s of %s is still explained", row.Volume, row.PodUID)
		}
	}
	if err := m.checkIndex(rows); err != nil {
		return err
	}
	return m.checkEvents(rows)
}

// checkIndex compares what is found of a claim and of a pod with all rows.
func (m *model) checkIndex(rows []volumemanager.VolumeStatus) error {
	claims, pods := make(map[types.NamespacedName]int), make(map[types.UID]int)
	for _, row := range rows {
		claims[row.Claim]++
		pods[row.PodUID]++
	}
	delete(claims, types.NamespacedName{})
	claims[types.NamespacedName{Namespace: "ops-test", Name: "nfs-211"}] += 0 // also where nothing of it is left
	for claim, want := range claims {
		if got := m.manager.ExplainClaim(claim); len(got) != want {
			return fmt.Errorf("claim %s has %d rows, and is found with %v", claim, want, got)
		}
	}
	for uid, want := range pods {
		if got := m.manager.ExplainPod(uid); len(got) != want {
			return fmt.Errorf("pod %s has %d rows, and is found with %v", uid, want, got)
		}
	}
	return nil
}

// isHeld reports whether what is left of a pod is a volume that was detached and
// whose file system another pod of the same server has mounted: nobody can tell
// whether the first one still uses it.
func (m *model) isHeld(pod *v1.Pod) bool {
	entries, err := m.fake.Table().BySource("10.0.0.1:/nfs")
	if err != nil || len(entries) == 0 {
		return false
	}
	return !slices.ContainsFunc(m.manager.Explain(), func(row volumemanager.VolumeStatus) bool {
		return row.PodUID == pod.UID && row.State != volumemanager.StateDetached
	})
}

// converge ends all faults, gives the manager what it waits for, and checks
// that it comes to what is wanted by itself.
func (m *model) converge() error {
	m.endFaults()
	if m.content == "" {
		m.setConfig("again")
	}
	m.makeClaim()
	m.manager.PodsComplete()
	for range 10 { // what the cluster does makes the node go on, and the other way round
		synctest.Wait()
		m.cluster()
		time.Sleep(time.Minute)
	}
	synctest.Wait()
	if err := m.check(); err != nil {
		return err
	}
	if err := m.checkDevicesAtEnd(); err != nil {
		return err
	}
	if err := m.checkRests(); err != nil {
		return err
	}
	left := m.records()
	for i, wanted := range m.wanted {
		pod := modelPod(i)
		has := slices.ContainsFunc(left, func(key string) bool { return strings.HasPrefix(key, string(pod.UID)+"/") })
		switch {
		case wanted:
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := m.manager.WaitForMounted(ctx, pod.UID)
			cancel()
			if err != nil {
				return err
			}
		case has && !m.role.is(pod.UID) && !m.isHeld(pod):
			return fmt.Errorf("%s is gone, and has left %v", pod.UID, left)
		}
	}
	for _, name := range []string{"p1", "p3"} {
		i := int(name[1] - '0')
		if !m.wanted[i] {
			continue
		}
		if got := m.file(name, "configmap", "settings", "content"); got != m.content {
			return fmt.Errorf("%s shows %q, want %q", name, got, m.content)
		}
	}
	return nil
}

// checkRests checks that a node that has come to what is wanted does nothing
// more: no mount is tried, and no event sent.
func (m *model) checkRests() error {
	calls, events := len(m.fake.Calls()), len(m.events.all())
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	if more := m.fake.Calls()[calls:]; len(more) > 0 {
		return fmt.Errorf("it goes on with %v", more)
	}
	if more := m.events.all()[events:]; len(more) > 0 {
		return fmt.Errorf("it goes on with %v", more)
	}
	return nil
}
