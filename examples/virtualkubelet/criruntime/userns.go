package criruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/userns"
	"github.com/podvol/podvol/volume/containermounts"
)

// A pod with hostUsers: false has a user namespace with ids of the machine that no other
// pod of this root directory has (KEP-127). The pod's file, at the kubelet's place, names them
// before anything is made with them. They are free again once the file is gone. There is no
// other list.

const (
	// idsOfPod is how many ids a pod gets: those that an image may expect.
	idsOfPod = 1 << 16
	// mostRanges is how many pods get ids where the machine sets none aside, as with a kubelet.
	mostRanges = 110
	// subordinateTo is the user whose ids in /etc/subuid and /etc/subgid are for pods.
	subordinateTo = "kubelet"
)

// idRange is a map between a pod's ids and the machine's, in a kubelet's words.
type idRange struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// idMaps are a pod's: of users and, just the same, of groups.
type idMaps struct {
	UIDs []idRange `json:"uidMappings"`
	GIDs []idRange `json:"gidMappings"`
}

func (m *idMaps) namespace() *cri.UserNamespace {
	if m == nil {
		return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}
	}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: inCRI(m.UIDs), Gids: inCRI(m.GIDs)}
}

func inCRI(list []idRange) (all []*cri.IDMapping) {
	for _, r := range list {
		all = append(all, &cri.IDMapping{HostId: r.HostID, ContainerId: r.ContainerID, Length: r.Length})
	}
	return all
}

func ofMounts(list []idRange) (all []mount.IDMapping) {
	for _, r := range list {
		all = append(all, mount.IDMapping{ContainerID: r.ContainerID, HostID: r.HostID, Size: r.Length})
	}
	return all
}

// MountOptions returns the features that a pod's mounts may use and the ids that they must
// have. It gives the pod these ids where it has none yet.
func (r *Runtime) MountOptions(ctx context.Context, pod *v1.Pod) (containermounts.Options, error) {
	o := containermounts.Options{Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: r.has.recursiveReadOnly}}
	maps, err := r.idsOf(ctx, pod)
	if err == nil && maps != nil {
		o.UIDMappings, o.GIDMappings = ofMounts(maps.UIDs), ofMounts(maps.GIDs)
	}
	return o, err
}

func hasOwnUsers(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// idsOf returns a pod's ids, and gives it some where it has none; nil: it has the machine's.
func (r *Runtime) idsOf(ctx context.Context, pod *v1.Pod) (*idMaps, error) {
	if !hasOwnUsers(pod) {
		return nil, nil
	}
	unlock, err := r.giving.Lock(ctx, struct{}{})
	if err != nil {
		return nil, err
	}
	defer unlock()
	file := r.idsFile(pod.UID)
	maps, err := readIDs(file)
	if err != nil || maps != nil {
		return maps, err
	}
	first, err := r.freeIDs()
	if err != nil {
		return nil, err
	}
	given := []idRange{{HostID: first, Length: idsOfPod}}
	maps = &idMaps{UIDs: given, GIDs: given}
	text, err := json.Marshal(maps)
	if err != nil {
		return nil, err
	}
	// With the first directory the pod is among those of which RemovePod is asked.
	for _, dir := range []string{r.podDir(pod.UID), filepath.Dir(file)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
	}
	return maps, durable.Create(file, text, 0o644) // which leaves nothing else behind after a power cut
}

func (r *Runtime) idsFile(pod types.UID) string {
	return filepath.Join(r.RootDir, "pods", string(pod), "userns")
}

// readIDs reads a pod's file; nil: there is none.
func readIDs(file string) (*idMaps, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // or no pod's directory is there
		return nil, nil
	}
	var maps idMaps
	if err == nil {
		err = json.Unmarshal(text, &maps)
	}
	if err == nil && (len(maps.UIDs) != 1 || len(maps.GIDs) != 1 || maps.UIDs[0] != maps.GIDs[0] || maps.UIDs[0].ContainerID != 0 || maps.UIDs[0].HostID == 0 || maps.UIDs[0].Length == 0) {
		err = errors.New("it does not have one range for users and the same one for groups")
	}
	if err != nil {
		return nil, fmt.Errorf("which ids a pod has cannot be read from %s: %w", file, err)
	}
	return &maps, nil
}

// freeIDs returns the first of a range of ids that no pod has. It fails if the ids of any pod
// cannot be read: they might be these.
func (r *Runtime) freeIDs() (uint32, error) {
	first, count, err := r.ids()
	if err != nil {
		return 0, err
	}
	pods, err := entriesOf(filepath.Join(r.RootDir, "pods"))
	if err != nil {
		return 0, err
	}
	var taken userns.IDs
	for _, dir := range pods {
		maps, err := readIDs(filepath.Join(dir, "userns"))
		if err != nil {
			return 0, err
		}
		if maps != nil {
			taken = append(taken, userns.Range{Outside: maps.UIDs[0].HostID, Size: maps.UIDs[0].Length})
		}
	}
	for ; count > 0; count-- {
		if !taken.Overlaps(first, idsOfPod) {
			return first, nil
		}
		first += idsOfPod
	}
	return 0, errors.New("all ids that are set aside for pods are taken (user kubelet in /etc/subuid and /etc/subgid)")
}

// setAside reads for how many pods the machine has ids, and the first one, by the kubelet's
// rules: one range of the user kubelet, the same in both files, or else the kubelet's own.
func setAside(files ...string) (first, pods uint32, err error) {
	var ranges []userns.IDs
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, 0, err
		}
		all, err := userns.Subordinate(bytes.NewReader(text), 0, subordinateTo)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", file, err)
		}
		ranges = append(ranges, all[1:]) // the first is the user's own
	}
	users, groups := ranges[0], ranges[1]
	if len(users) == 0 && len(groups) == 0 {
		return idsOfPod, mostRanges, nil
	}
	if len(users) != 1 || len(groups) != 1 || users[0] != groups[0] || users[0].Outside%idsOfPod != 0 || users[0].Size < idsOfPod {
		return 0, 0, fmt.Errorf("%s must give the user %s one range, the same one, that begins at a multiple of %d and has as many ids at least",
			strings.Join(files, " and "), subordinateTo, idsOfPod)
	}
	return users[0].Outside, users[0].Size / idsOfPod, nil
}
