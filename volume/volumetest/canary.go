package volumetest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/volume"
)

// canary looks for the suite's secret where it must not be.
type canary struct {
	*kit
	secret string
}

func checkCanary(k *kit, c Case) {
	if k.runner.suite.Canary == "" {
		return
	}
	for _, op := range []operation{setUpOperation(), refreshOperation(), tearDownOperation()} {
		for _, p := range k.points(c, op) {
			k.bubble(func(k *kit) {
				defer k.explain("%s, where %s failed", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				op.prepare(v)
				n.disturb(p, disturbance{err: errInjected})
				k.canary().lookAround(v, op.run(k.Context(), v))
			})
		}
	}
	n := k.node(c)
	v := n.volume("a")
	v.mustSetUp()
	k.canary().lookAround(v, nil)
	if !v.holds(k.runner.suite.Canary) {
		k.Errorf("the volume does not hold the canary, so the check shows nothing; put it into an object that the case uses, or a sensitive option")
	}
}

func (k *kit) canary() canary { return canary{k, k.runner.suite.Canary} }

func (c canary) look(what string, value any) {
	c.Helper()
	for _, format := range []string{"%v", "%+v", "%#v"} {
		if text := fmt.Sprintf(format, value); strings.Contains(text, c.secret) {
			c.Errorf("the canary shows in %s: %s", what, text)
			return
		}
	}
}

// lookAround looks everywhere after an operation that returned err.
func (c canary) lookAround(v *podVolume, err error) {
	c.Helper()
	if err != nil {
		c.look("the error", err.Error())
	}
	for _, call := range v.node.mounterCalls() {
		c.look("a call of the mounter", call)
	}
	c.look("an event", v.node.RecordedEvents())
	c.look("the source's description", volume.DescribeSource(v.node.plugin, v.spec))
	name, err := v.node.plugin.GetVolumeName(v.spec)
	c.look("the volume's name", fmt.Sprint(name, err))
	record, err := volume.EncodeRecord(v.record())
	c.look("the record", fmt.Sprint(string(record), err))
}

// holds reports whether the secret is where it belongs: in the volume's files
// or among the sensitive options of a mount.
func (v *podVolume) holds(secret string) bool {
	for _, call := range v.node.mounter.Calls() {
		if strings.Contains(strings.Join(call.Sensitive(), ","), secret) {
			return true
		}
	}
	found := false
	// Files that cannot be read do not hold it, as far as one can tell.
	_ = filepath.WalkDir(v.GetPath()+"/.", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			content, _ := os.ReadFile(path)
			found = found || strings.Contains(string(content), secret)
		}
		return nil
	})
	return found
}
