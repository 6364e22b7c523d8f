package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumesource"
	"github.com/podvol/podvol/volume/volumetest/internal/output"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
)

// canary looks for the suite's secret where it must not be.
type canary struct {
	*kit
	secret string
	output *output.Output
}

func checkCanary(k *kit, c Case) {
	if k.runner.suite.Canary == "" {
		return
	}
	o := output.Capture(k)
	defer o.Restore()
	for _, op := range []operation{
		setUpOperation(), refreshOperation(), tearDownOperation(), metricsOperation(), reconstructOperation(),
	} {
		for _, p := range k.points(c, op) {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where %s failed", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				op.prepare(v)
				n.sim.Disturb(p, sim.Disturbance{Err: sim.ErrInjected})
				k.canary(o).lookAround(v, op.run(k.Context(), v))
			})
		}
	}
	for _, refused := range k.runner.suite.Refused {
		n := k.node(Case{Spec: refused.Spec, Prepare: refused.Prepare, Pod: refused.Pod})
		spec := refused.Spec(n)
		m, err := n.sim.Plugin.NewMounter(spec, n.pod("a", spec))
		if err == nil {
			err = m.SetUp(k.Context(), volume.MounterArgs{})
		}
		k.canary(o).lookAtError("of what is refused", err)
	}
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	k.canary(o).lookAround(v, nil)
	if !v.holds(k.runner.suite.Canary) {
		k.Errorf("the volume does not hold the canary, so the check shows nothing; put it into an object that the case uses, or a sensitive option")
	}
}

func metricsOperation() operation {
	return operation{name: "GetMetrics", prepare: (*podVolume).MustSetUp, run: func(ctx context.Context, v *podVolume) error {
		_, err := v.GetMetrics(ctx)
		if errors.Is(err, volume.ErrMetricsUnsupported) {
			return nil
		}
		return err
	}}
}

func reconstructOperation() operation {
	return operation{name: "ConstructVolumeSpec", prepare: (*podVolume).MustSetUp, run: func(ctx context.Context, v *podVolume) error {
		_, err := v.node.sim.Plugin.ConstructVolumeSpec(ctx, v.Spec.Name(), v.GetPath())
		return err
	}}
}

func (k *kit) canary(o *output.Output) canary { return canary{k, k.runner.suite.Canary, o} }

func (c canary) look(what string, value any) {
	c.Helper()
	for _, format := range []string{"%v", "%+v", "%#v"} {
		if text := fmt.Sprintf(format, value); strings.Contains(text, c.secret) {
			c.Errorf("the canary shows in %s: %s", what, text)
			return
		}
	}
}

// lookAtError looks at the error and at all that it wraps.
func (c canary) lookAtError(what string, err error) {
	c.Helper()
	if err == nil {
		return
	}
	c.look("the error "+what, err)
	switch wrapper := err.(type) {
	case interface{ Unwrap() error }:
		c.lookAtError(what, wrapper.Unwrap())
	case interface{ Unwrap() []error }:
		for _, wrapped := range wrapper.Unwrap() {
			c.lookAtError(what, wrapped)
		}
	}
}

// lookAround looks everywhere after an operation that returned err.
func (c canary) lookAround(v *podVolume, err error) {
	c.Helper()
	p := v.node.sim.Plugin
	c.lookAtError("of the operation", err)
	for _, call := range sim.MounterCalls(v.node.Host) {
		c.look("a call of the mounter", call)
	}
	c.look("an event", v.node.RecordedEvents())
	c.look("the source's description", volumesource.Describe(p, v.Spec))
	name, err := p.GetVolumeName(v.Spec)
	c.look("the volume's name", fmt.Sprint(name, err))
	record, err := mountrecord.Encode(v.Record())
	c.look("the record", fmt.Sprint(string(record), err))
	_, err = p.NewMounter(v.Spec, nil)
	c.lookAtError("of NewMounter without a pod", err)
	rebuilt, err := p.ConstructVolumeSpec(c.Context(), v.Spec.Name(), v.GetPath())
	c.lookAtError("of ConstructVolumeSpec", err)
	if rebuilt.Spec != nil {
		c.look("the rebuilt spec", *rebuilt.Spec)
	}
	_, err = v.GetMetrics(c.Context())
	c.lookAtError("of GetMetrics", err)
	c.lookAtFiles(v)
	c.look("a log or what was printed", c.output.Take(c))
}

// lookAtFiles looks at every file below the root but those of the volume.
func (c canary) lookAtFiles(v *podVolume) {
	c.Helper()
	err := filepath.WalkDir(v.node.RootDir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == v.GetPath() && entry.IsDir():
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		c.look("the file "+path, string(content))
		return err
	})
	if err != nil {
		c.Errorf("looking for the canary in files: %v", err)
	}
}

// holds reports whether the secret is where it belongs: in the volume's files
// or among the sensitive options of a mount.
func (v *podVolume) holds(secret string) bool {
	for _, call := range sim.MounterCalls(v.node.Host) {
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
