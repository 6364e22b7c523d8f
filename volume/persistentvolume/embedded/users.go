package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

const (
	// usersDir, below [Config.Dir], has a file of each process that uses volumes for
	// as long as it lives. The process locks its file (flock(2)): a file whose lock
	// is free was left by a killed process.
	usersDir   = "users"
	userSuffix = ".json"
	// userUnfinished begins the name of a file that is being made.
	userUnfinished = ".new-"
	userVersion    = 1
)

// userFile is what such a file says.
type userFile struct {
	SchemaVersion int       `json:"schemaVersion"`
	By            string    `json:"by"`
	Volumes       []Mounted `json:"volumes"`
}

// User is a process's entry that it uses volumes; see [Cluster.Use].
type User struct {
	path string
	file *os.File
	gone func() error
}

// Use writes down that from now on this process, and not the node of [Config.Mounted],
// uses the claims of pods and their volumes. They are not deleted or emptied, nor given to
// another process if their access mode is ReadWriteOncePod, until [User.Release] is called
// or the process ends, however it ends.
//
//   - By names the user, as "podvol run (process 4711)".
//   - It must be called before the first mount. It is durable when it returns; the cluster
//     may be closed then.
//   - The pods must be bound ([Cluster.Bind]); unbound claims are left out.
//   - A use that allows no second user is a *[persistentvolume.PlacementError] that
//     matches [persistentvolume.ErrUsedByOtherPod].
func (c *Cluster) Use(ctx context.Context, by string, pods ...*v1.Pod) (*User, error) {
	content := userFile{SchemaVersion: userVersion, By: by}
	mounted, err := c.knownMounted(ctx)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		for _, claimName := range claimsOf(pod) {
			claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.objects, volume.NewObjectRef(kindClaim, claimName.Namespace, claimName.Name))
			switch {
			case errors.Is(err, volume.ErrNotFound) || err == nil && claim.Spec.VolumeName == "":
				continue
			case err != nil:
				return nil, err
			}
			if err := soleUser(name, claim, mounted); err != nil {
				return nil, err
			}
			content.Volumes = append(content.Volumes, Mounted{Pod: name, PodUID: pod.UID, Claim: claimName, Volume: claim.Spec.VolumeName})
		}
	}
	u, err := newUser(filepath.Join(c.dir, usersDir), content)
	if err != nil {
		return nil, fmt.Errorf("write down who uses claims: %w", err)
	}
	for i := range content.Volumes {
		content.Volumes[i].By = by
	}
	own := &liveUser{path: u.path, mounted: content.Volumes}
	// That nothing is used any more is known before the caller goes on, whatever
	// its contexts are.
	u.gone = func() error { return c.userGone(context.WithoutCancel(ctx), own) }
	c.users.mu.Lock()
	c.users.live = append(c.users.live, own)
	c.users.mu.Unlock()
	if err := c.storeUsers(ctx, own.asPods()); err != nil {
		return nil, errors.Join(err, u.Release())
	}
	return u, nil
}

// soleUser refuses a pod a claim that is for one pod alone, and in use.
func soleUser(pod types.NamespacedName, claim *v1.PersistentVolumeClaim, mounted []Mounted) error {
	if !isForOnePod(claim) {
		return nil
	}
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	i := slices.IndexFunc(mounted, func(m Mounted) bool { return m.Claim == name })
	if i < 0 {
		return nil
	}
	return &persistentvolume.PlacementError{Pod: pod, Claim: name, Err: &usedError{mounted[i]}}
}

// usedError names the user of a claim that is for one pod alone.
type usedError struct{ user Mounted }

func (e *usedError) Error() string {
	return fmt.Sprintf("%v: it is in use by %s", persistentvolume.ErrUsedByOtherPod, e.user.who())
}

func (e *usedError) Unwrap() error { return persistentvolume.ErrUsedByOtherPod }

// WaitsFor implements [claimbinding.Waiting].
func (e *usedError) WaitsFor() string {
	return fmt.Sprintf("claim %s to be out of use by %s", e.user.Claim, e.user.who())
}

// who names a user for people.
func (m Mounted) who() string {
	if m.By == "" {
		return "pod " + m.Pod.String()
	}
	return fmt.Sprintf("%s of pod %s", m.By, m.Pod)
}

// newUser makes a file, which is locked before another process can see it.
func newUser(dir string, content userFile) (_ *User, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, userUnfinished)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()), file.Close())
		}
	}()
	if err := filelock.Lock(file, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	if _, err := file.Write(append(data, '\n')); err != nil {
		return nil, err
	}
	if err := file.Sync(); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, strings.TrimPrefix(filepath.Base(file.Name()), userUnfinished)+userSuffix)
	if err := os.Rename(file.Name(), path); err != nil {
		return nil, err
	}
	u := &User{path: path, file: file}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := syncDir(d); err != nil {
			return nil, errors.Join(err, u.Release())
		}
	}
	return u, nil
}

// Release says that nothing is used any more: everything is unmounted. A second
// call does nothing.
func (u *User) Release() error {
	if u.file == nil {
		return nil
	}
	remove := u.gone
	if remove == nil {
		remove = func() error { return removeUser(u.path) }
	}
	err := errors.Join(remove(), u.file.Close())
	u.file = nil
	return err
}

func removeUser(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ReadUsers returns the claims and volumes in a directory that callers of
// [Cluster.Use] use. It takes no lock and changes nothing.
func ReadUsers(dir string) (all []Mounted, err error) {
	users, err := liveUsers(filepath.Join(dir, usersDir), false)
	for _, u := range users {
		all = append(all, u.mounted...)
	}
	return all, err
}

// liveUser is the entry of a process that lived when it was read.
type liveUser struct {
	path    string
	mounted []Mounted
}

// liveUsers reads a directory of users. With remove, dead processes' files are
// removed: the caller must keep others from adding to it.
func liveUsers(dir string, remove bool) (live []*liveUser, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		finished := strings.HasSuffix(path, userSuffix)
		if !finished && !strings.HasPrefix(entry.Name(), userUnfinished) {
			continue // no user's file
		}
		lives, err := isLocked(path)
		switch {
		case err != nil:
			return nil, err
		case !lives && remove:
			if err := removeUser(path); err != nil {
				return nil, err
			}
		case lives && finished:
			u := &liveUser{path: path}
			if u.mounted, err = readUser(path); errors.Is(err, fs.ErrNotExist) {
				continue // it has just been released
			} else if err != nil {
				return nil, fmt.Errorf("%s, which says what a process uses that runs, cannot be understood: %w; end that process", path, err)
			}
			live = append(live, u)
		}
	}
	return live, nil
}

// isLocked reports whether the process that has made a file lives; false for a
// missing file. The lock is shared, and so disturbs no other process that asks.
func isLocked(path string) (bool, error) {
	f, err := filelock.Open(path, unix.LOCK_SH|unix.LOCK_NB)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, err
	}
	return false, filelock.Close(f)
}

func readUser(path string) ([]Mounted, error) {
	var content userFile
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, err
	}
	if content.SchemaVersion != userVersion {
		return nil, fmt.Errorf("its schema version is %d, this program knows %d", content.SchemaVersion, userVersion)
	}
	for i := range content.Volumes {
		content.Volumes[i].By = content.By
	}
	return content.Volumes, nil
}

// users are the processes that used volumes when the directory was opened, and
// this process's own: only the owner of the directory can add others.
type users struct {
	waiting blockingcall.Group[string]

	mu   sync.Mutex
	live []*liveUser
}

// loadUsers takes over the users of volumes, and stores pods for them, beside
// declared ones.
func (c *Cluster) loadUsers(ctx context.Context) error {
	live, err := liveUsers(filepath.Join(c.dir, usersDir), true)
	if err != nil {
		return err
	}
	c.users.live = live
	for _, u := range live {
		if err := c.storeUsers(ctx, u.asPods()); err != nil {
			return err
		}
	}
	return nil
}

// asPods returns the volumes under pods that no manifest can declare, since the
// pod of that name and UID may be declared too, and come and go by itself.
func (u *liveUser) asPods() []Mounted {
	id := strings.TrimSuffix(filepath.Base(u.path), userSuffix)
	own := slices.Clone(u.mounted)
	for i := range own {
		own[i].Pod.Name += ".user-" + id
		own[i].PodUID = types.UID(fmt.Sprintf("%s%s-%s", userUID, id, own[i].PodUID))
	}
	return own
}

// userUID begins the UIDs of such pods.
const userUID = "user-"

func isUser(pod *v1.Pod) bool { return strings.HasPrefix(string(pod.UID), userUID) }

// awaitUsers returns when ctx ends; until then each user that ends lets go of
// what it has used.
func (c *Cluster) awaitUsers(ctx context.Context) {
	c.users.mu.Lock()
	live := slices.Clone(c.users.live)
	c.users.mu.Unlock()
	var all sync.WaitGroup
	for _, u := range live {
		all.Go(func() {
			err := c.users.waiting.Do(ctx, u.path, func() error { return waitUnlocked(u.path) })
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = c.userGone(ctx, u)
			}
			if err != nil {
				c.log.WarnContext(ctx, "cannot read a user record; its volumes stay in use until the restart", "user", u.path, "error", err)
			}
		})
	}
	all.Wait()
}

// waitUnlocked returns when the process that has made a file has ended.
func waitUnlocked(path string) error {
	f, err := filelock.Open(path, unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return filelock.Close(f)
}

func (c *Cluster) userGone(ctx context.Context, gone *liveUser) error {
	if err := removeUser(gone.path); err != nil {
		return err
	}
	c.users.mu.Lock()
	c.users.live = slices.DeleteFunc(c.users.live, func(u *liveUser) bool { return u == gone })
	c.users.mu.Unlock()
	for _, m := range gone.asPods() {
		if err := c.PodGone(ctx, m.PodUID); err != nil {
			return err
		}
	}
	return nil
}

// knownMounted is allMounted for calls that may go on though some mounts may be
// unknown.
func (c *Cluster) knownMounted(ctx context.Context) ([]Mounted, error) {
	all, err := c.allMounted(ctx)
	if errors.Is(err, ErrIncomplete) {
		return all, nil
	}
	return all, err
}

// allMounted returns the mounts on this machine, and other processes' uses. With
// [ErrIncomplete] that may not be all.
func (c *Cluster) allMounted(ctx context.Context) (all []Mounted, err error) {
	var incomplete error
	if c.mounted != nil {
		if all, incomplete = c.mounted(ctx); incomplete != nil && !errors.Is(incomplete, ErrIncomplete) {
			return nil, incomplete
		}
	}
	if all, err = c.users.addTo(all); err == nil {
		err = incomplete
	}
	return all, err
}

// mountedOf returns at least that part of allMounted that is for a pod or of some
// claims.
func (c *Cluster) mountedOf(ctx context.Context, pod types.UID, claims ...types.NamespacedName) ([]Mounted, error) {
	if pod == "" && len(claims) == 0 {
		return nil, nil
	}
	if c.mountedFor == nil {
		return c.knownMounted(ctx)
	}
	all, err := c.mountedFor(ctx, pod, claims)
	if err != nil {
		return nil, err
	}
	return c.users.addTo(all)
}

// addTo adds other processes' uses to the node's mounts.
func (u *users) addTo(all []Mounted) ([]Mounted, error) {
	u.mu.Lock()
	live := slices.Clone(u.live)
	u.mu.Unlock()
	all = slices.Clone(all)
	for _, user := range live {
		lives, err := isLocked(user.path)
		if err != nil {
			return nil, err
		}
		if lives {
			all = append(all, user.mounted...)
		}
	}
	return all, nil
}

// checkUsers refuses a pod claims for one pod alone that another pod has mounted,
// even one that is declared no more, or with other volumes, or of the same name;
// or that a process beside the node uses, even for a pod of the same UID.
func (c *Cluster) checkUsers(ctx context.Context, pod *v1.Pod, mounted []Mounted) error {
	for _, name := range claimsOf(pod) {
		others := slices.DeleteFunc(slices.Clone(mounted), func(m Mounted) bool {
			return m.Claim != name || m.By == "" && hasMounted(mounted, pod.UID, name, m.Volume)
		})
		if len(others) == 0 {
			continue
		}
		claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.objects, volume.NewObjectRef(kindClaim, name.Namespace, name.Name))
		if err != nil {
			continue // which others say
		}
		if err := soleUser(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, claim, others); err != nil {
			return err
		}
	}
	return nil
}

// hasMounted reports whether the node has a claim mounted for a pod, from that
// volume.
func hasMounted(mounted []Mounted, uid types.UID, claim types.NamespacedName, volumeName string) bool {
	return slices.ContainsFunc(mounted, func(m Mounted) bool {
		return m.By == "" && m.PodUID == uid && m.Claim == claim && m.Volume == volumeName
	})
}
