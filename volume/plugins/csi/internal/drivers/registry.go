package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/csiregistration"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
)

const (
	dialTimeout   = 10 * time.Second
	infoTimeout   = time.Second
	notifyTimeout = 5 * time.Second
	dirMode       = 0o750
)

// Events are the node's part of registrations.
type Events struct {
	// Introduce is called before a registration counts. After an error it does not.
	Introduce func(context.Context, *Driver) error
	// Registered is called once it counts, and Ended when it has ended.
	Registered, Ended func(name string)
}

// registry keeps the drivers that register themselves. Its loop is the only goroutine
// that uses it.
type registry struct {
	set *Set
	dir string
	on  Events
	// sockets are those of registrars that were found, by path.
	sockets map[string]*registrar
	tried   chan attempt
}

// registrar is one socket in the registry.
type registrar struct {
	id       socketID
	running  bool // an attempt
	driver   *Driver
	failures int
	retryAt  time.Time // zero: no attempt is due
}

// attempt is what became of an attempt to register.
type attempt struct {
	path   string
	id     socketID
	driver *Driver
	err    error
}

// Run registers the drivers that announce themselves by sockets below a directory, by the
// kubelet's protocol, until ctx ends.
//
//   - A socket that goes ends its registration. One that is made anew is another one.
//   - Of several registrations of one name the newest counts. If it ends, the one before
//     counts again.
//   - A driver of [Config.Sockets] is not replaced.
//   - A registration that fails is tried again, after at most two minutes, or at once
//     when the socket is made anew.
//   - A socket must belong to root or to this process's user, have one name, and be
//     closed to others.
//   - A directory that somebody removes is made again.
//
// Registered drivers stay known when Run ends.
func (s *Set) Run(ctx context.Context, dir string, on Events) error {
	r := &registry{set: s, dir: dir, on: on, sockets: make(map[string]*registrar), tried: make(chan attempt)}
	w, err := newWatch()
	if err != nil {
		return err
	}
	defer w.close()
	if _, err := podmount.MakeDir(r.dir, dirMode); err != nil {
		return err
	}
	defer func() { _ = podmount.RemoveDir(r.dir) }() // unless drivers are there
	s.warnOfDir(dir)
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for r.pending() {
			<-r.tried
		}
	}()
	for ctx.Err() == nil {
		found, err := w.registry(r.dir)
		if errors.Is(err, fs.ErrNotExist) { // somebody has removed it
			if _, err = podmount.MakeDir(r.dir, dirMode); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		r.compare(found)
		r.begin(ctx)
		r.wait(ctx, w)
	}
	return nil
}

// end ends a registration; nil: there was none.
func (r *registry) end(d *Driver) {
	if d != nil {
		r.set.Deregister(d)
		r.on.Ended(d.Name)
	}
}

func (r *registry) pending() bool {
	for _, s := range r.sockets {
		if s.running {
			s.running = false
			return true
		}
	}
	return false
}

// compare ends registrations whose sockets are gone, and enters new sockets.
func (r *registry) compare(found map[string]socketID) {
	for path, s := range r.sockets {
		if id, there := found[path]; there && id == s.id {
			continue
		}
		r.end(s.driver)
		s.driver, s.failures, s.retryAt = nil, 0, time.Time{}
		if !s.running {
			delete(r.sockets, path)
		}
	}
	for path, id := range found {
		s := r.sockets[path]
		if s == nil {
			s = &registrar{}
			r.sockets[path] = s
		}
		if s.id != id {
			s.id, s.retryAt = id, time.Now()
		}
	}
}

// begin starts the attempts that are due.
func (r *registry) begin(ctx context.Context) {
	for path, s := range r.sockets {
		if s.running || s.retryAt.IsZero() || time.Now().Before(s.retryAt) {
			continue
		}
		s.running, s.retryAt = true, time.Time{}
		id := s.id
		go func() {
			d, err := r.register(ctx, path)
			r.tried <- attempt{path, id, d, err}
		}()
	}
}

// wait returns when something may have changed.
func (r *registry) wait(ctx context.Context, w *watch) {
	var due <-chan time.Time
	if next := r.next(); !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.changed:
	case <-due:
	case a := <-r.tried:
		r.settle(a)
	}
}

func (r *registry) next() (next time.Time) {
	for _, s := range r.sockets {
		if !s.running && !s.retryAt.IsZero() && (next.IsZero() || s.retryAt.Before(next)) {
			next = s.retryAt
		}
	}
	return next
}

// settle notes what became of an attempt. The socket may be another one by now.
func (r *registry) settle(a attempt) {
	s := r.sockets[a.path]
	s.running = false
	switch {
	case s.id != a.id:
		r.end(a.driver)
	case a.err == nil:
		s.driver, s.failures = a.driver, 0
		r.set.config.Logger.Info("a CSI driver is registered", "driver", a.driver.Name, "socket", a.driver.Socket)
		r.on.Registered(a.driver.Name)
	default:
		s.failures++
		s.retryAt = time.Now().Add(min(FirstPause<<min(s.failures-1, 20), longPause))
		r.set.config.Logger.Warn("a CSI driver is not registered", "registration", a.path, "error", a.err, "retry", s.retryAt)
	}
}

// Discover has the drivers known that register themselves at present, without telling
// their registrars: it is for commands that look at drivers. It returns what is wrong
// with sockets that register none. Run must not run.
func (s *Set) Discover(ctx context.Context) (refused map[string]error, err error) {
	w, err := newWatch()
	if err != nil {
		return nil, err
	}
	defer w.close()
	s.warnOfDir(s.config.RegistryDir)
	found, err := w.sockets(s.config.RegistryDir)
	refused = make(map[string]error)
	for path := range found {
		if _, err := s.look(ctx, path); err != nil {
			refused[path] = err
		}
	}
	return refused, err
}

// warnOfDir tells of a registry in which others may put sockets, or take them away. Only the
// sockets of root and of this process's user are used.
func (s *Set) warnOfDir(dir string) {
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o022 != 0 {
		s.config.Logger.Warn("other users may change the registry of CSI drivers: let only its owner write there (chmod go-w)", "dir", dir, "mode", info.Mode().Perm().String())
	}
}

func (s *Set) look(ctx context.Context, path string) (*Driver, error) {
	conn, err := dialRegistrar(path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	info, err := askInfo(ctx, conn, path)
	if err != nil {
		return nil, err
	}
	return s.accept(info, path)
}

func dialRegistrar(path string) (*grpc.ClientConn, error) {
	if err := checkSocket(path); err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///registration", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialUnix(ctx, path) }))
}

// register takes one registration, and tells the registrar.
func (r *registry) register(ctx context.Context, path string) (*Driver, error) {
	conn, err := dialRegistrar(path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	info, err := askInfo(ctx, conn, path)
	if err != nil {
		return nil, err
	}
	d, err := r.set.accept(info, path)
	if err == nil {
		if err = r.on.Introduce(ctx, d); err != nil {
			r.end(d)
			d = nil
		}
	}
	told := csiregistration.Status{Registered: err == nil}
	if err != nil {
		told.Error = err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if notifyErr := conn.Invoke(ctx, csiregistration.NotifyRegistrationStatus, told.Message(), new(emptypb.Empty)); notifyErr != nil && err == nil {
		r.end(d)
		return nil, fmt.Errorf("telling the registrar that driver %s is registered: %w", d.Name, notifyErr)
	}
	return d, err
}

func askInfo(ctx context.Context, conn *grpc.ClientConn, path string) (csiregistration.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout+infoTimeout)
	defer cancel()
	answer := new(emptypb.Empty)
	if err := conn.Invoke(ctx, csiregistration.GetInfo, new(emptypb.Empty), answer); err != nil {
		return csiregistration.Info{}, &volume.Failure{Cause: ErrUnreachable, Err: err,
			What: fmt.Sprintf("at %s nothing answers that registers drivers as the kubelet wants it: %.300s", Shown(path), status.Convert(err).Message()),
			Next: "start its node-driver-registrar anew, or remove the socket if its driver is gone; a driver's own socket belongs elsewhere"}
	}
	return csiregistration.ParseInfo(answer)
}

// accept checks a registration, and has its driver known.
func (s *Set) accept(info csiregistration.Info, path string) (*Driver, error) {
	if info.Type != csiregistration.CSIPlugin {
		return nil, fmt.Errorf("plugins of type %.40q are not known here", info.Type)
	}
	if err := csivolume.CheckDriverName("name", info.Name); err != nil {
		return nil, err
	}
	if err := checkVersions(info.Versions); err != nil {
		return nil, err
	}
	endpoint := cmp.Or(info.Endpoint, path)
	if !filepath.IsAbs(endpoint) {
		return nil, fmt.Errorf("the endpoint %.200q of driver %s is no absolute path", endpoint, info.Name)
	}
	if err := checkSocket(endpoint); err != nil && !errors.Is(err, os.ErrNotExist) { // a driver may start later
		return nil, err
	}
	d := s.newDriver(info.Name, endpoint, false)
	return d, s.register(d)
}

// checkVersions wants one of version 1.
func checkVersions(versions []string) error {
	for _, v := range versions {
		major, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n == 1 {
			return nil
		}
	}
	return fmt.Errorf("of the versions %.200q of CSI none is 1.x", versions)
}

// register makes a driver known. It comes before others of its name.
func (d *Set) register(one *Driver) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.byName[one.Name]
	if before != nil && before.Fixed {
		return fmt.Errorf("driver %s is configured with the socket %s", one.Name, Shown(before.Socket))
	}
	if before != nil {
		d.older[one.Name] = append(d.older[one.Name], before)
	}
	d.byName[one.Name] = one
	return nil
}

// Deregister lets a driver be forgotten. Volumes of it get the registration
// before, if there is one.
func (d *Set) Deregister(one *Driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	older := d.older[one.Name]
	if d.byName[one.Name] != one {
		d.older[one.Name] = slices.DeleteFunc(older, func(o *Driver) bool { return o == one })
	} else if n := len(older); n > 0 {
		d.byName[one.Name], d.older[one.Name] = older[n-1], older[:n-1]
	} else {
		delete(d.byName, one.Name)
	}
	one.retire()
	d.config.Logger.Info("a CSI driver is no longer registered", "driver", one.Name, "socket", one.Socket)
}
