package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/plugins/image"
)

// What is wrong with the command line is said at once, and what to do.
func TestTheCommandSaysHowToReachACluster(t *testing.T) {
	for says, args := range map[string][]string{
		"use --kubeconfig or $KUBECONFIG, or run in a pod": {"--dir", t.TempDir()},
		"there are no arguments but flags":                 {"--hold", "hand"},
	} {
		command := exec.Command(os.Args[0], args...)
		command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
			return strings.HasPrefix(v, "KUBE")
		}), mainVar+"=1")
		out, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

// Volumes that cannot be managed leave nothing behind; TestMain looks for it.
func TestVolumesThatCannotBeManaged(t *testing.T) {
	set := fake.NewClientset()
	pods := &handled{SharedIndexInformer: informers.NewSharedInformerFactory(set, 0).Core().V1().Pods().Informer()}
	if _, err := newVolumes("not/absolute", "node1", set, pods, nil, nil, nil, image.New(image.Config{}), fakemount.New(), false, nil); err == nil {
		t.Fatal("a relative directory was taken")
	}
	if pods.handlers != 0 {
		t.Errorf("%d handlers are left at the informer", pods.handlers)
	}
}

// handled counts the handlers of an informer.
type handled struct {
	cache.SharedIndexInformer
	handlers int
}

func (h *handled) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	h.handlers++
	return h.SharedIndexInformer.AddEventHandler(handler)
}

func (h *handled) RemoveEventHandler(registration cache.ResourceEventHandlerRegistration) error {
	h.handlers--
	return h.SharedIndexInformer.RemoveEventHandler(registration)
}
