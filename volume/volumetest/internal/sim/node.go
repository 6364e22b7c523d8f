// Package sim drives a plugin as the volume manager of a node does: devices before the
// first pod's SetUp and after the last pod's TearDown, a new instance after a restart.
// It can disturb each call that the plugin makes: let it fail, hang, or be the last one of a
// process that dies. It knows neither checks nor suites.
package sim

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumetest/internal/faultymount"
	"github.com/podvol/podvol/volume/volumetest/internal/harness"
)

// Node is a host with one plugin.
type Node struct {
	*fakehost.Host
	Plugin volume.VolumePlugin

	t         *harness.T
	newPlugin func() volume.VolumePlugin
	mounter   faultymount.Mounter
	devices   *devices
	agent     *agent
}

// NewNode initializes a new plugin on a host, whose mounter is a [faultymount.Mounter].
func NewNode(t *harness.T, host *fakehost.Host, newPlugin func() volume.VolumePlugin) *Node {
	t.Helper()
	n := &Node{Host: host, t: t, newPlugin: newPlugin, mounter: host.GetMounter().(faultymount.Mounter), devices: newDevices(), agent: &agent{}}
	n.start()
	return n
}

// start gives the node a new plugin.
func (n *Node) start() {
	n.t.Helper()
	n.Plugin = n.newPlugin()
	if keeps, ok := n.Plugin.(io.Closer); ok {
		n.t.Cleanup(func() {
			if err := keeps.Close(); err != nil {
				n.t.Errorf("Close: %v", err)
			}
		})
	}
	n.Pods = podRunner{n}
	if err := n.Plugin.Init(n.Host); err != nil {
		n.t.Fatalf("Init: %v", err)
	}
}

// Restart returns the node as it is after the agent was started again: root,
// mounts and objects stay; plugin and host are new, and all that they remember.
func (n *Node) Restart() *Node {
	n.t.Helper()
	again := *n
	again.Host, again.agent = n.Restarted(), &agent{}
	again.start()
	again.sweep()
	return &again
}

// sweep has the plugin unmount what it had mounted for itself when it died, as
// the manager does at its start.
func (n *Node) sweep() {
	n.t.Helper()
	p, ok := volume.AsWorkMount(n.Plugin)
	if !ok {
		return
	}
	if err := p.SweepWork(n.t.Context()); err != nil {
		n.t.Errorf("SweepWork: %v", err)
	}
}

// AssertTornDown is that of [fakehost.Host], but bears with the directories that hold
// the places of the node's devices as well.
func (n *Node) AssertTornDown(t testing.TB) {
	t.Helper()
	n.Host.AssertTornDown(t, n.devices.isParent, n.isWorkPlace)
}

// isWorkPlace reports whether a path is the directory of a plugin that mounts
// for itself below it, or sets up devices there, or is above that.
func (n *Node) isWorkPlace(path string) bool {
	own := n.GetPluginDir(n.Plugin.GetPluginName())
	_, works := volume.AsWorkMount(n.Plugin)
	_, blocks := volume.AsBlock(n.Plugin)
	return (works || blocks) && (path == own || strings.HasPrefix(own, path+"/"))
}

// PodMounts are the node's mounts without those of its devices.
func (n *Node) PodMounts(t testing.TB) []string {
	t.Helper()
	n.devices.mu.Lock()
	defer n.devices.mu.Unlock()
	var targets []string
	for _, e := range n.Mounts(t) {
		if !n.devices.paths[e.Target] {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

// AssertNothingHeld is AssertTornDown after a controller's call. It bears with the directory
// in which the plugin mounts for itself, below its own, but with nothing in it.
func (n *Node) AssertNothingHeld(t testing.TB) {
	t.Helper()
	own := n.GetPluginDir(n.Plugin.GetPluginName())
	isOwn := func(dir string) bool {
		return dir == own || strings.HasPrefix(own, dir+"/") || filepath.Dir(dir) == own
	}
	n.Host.AssertTornDown(t, n.devices.isParent, isOwn)
}

// Reboot takes every mount away, newest first, without the plugin's knowledge.
func (n *Node) Reboot() {
	n.t.Helper()
	for _, e := range slices.Backward(n.Mounts(n.t)) {
		if _, err := mount.Unmount(n.t.Context(), n.mounter, e.Target, mount.UnmountOptions{}); err != nil {
			n.t.Fatalf("rebooting: %v", err)
		}
	}
}

// CallsOf returns the calls of mounter and roles that f makes, in words.
func (n *Node) CallsOf(f func()) (calls []string) {
	n.ResetCalls()
	f()
	for _, call := range MounterCalls(n.Host) {
		calls = append(calls, call.String())
	}
	for _, call := range n.RoleCalls() {
		calls = append(calls, fmt.Sprintf("%+v", call))
	}
	return calls
}

// ResetCalls forgets the calls of the mounter and the roles.
func (n *Node) ResetCalls() {
	n.mounter.ResetCalls()
	n.ResetRoleCalls()
}

// MounterCalls are all calls of a host's mounter, which is a [faultymount.Mounter].
func MounterCalls(h *fakehost.Host) []fakemount.Call {
	return h.GetMounter().(faultymount.Mounter).Calls()
}
