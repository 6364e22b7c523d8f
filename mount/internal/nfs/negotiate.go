package nfs

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/deadline"
	"github.com/podvol/podvol/util/retry"
)

// Result is a mount that was made.
type Result struct {
	Attempt Attempt
	// Refused are the versions tried before.
	Refused []Refusal
}

const (
	// retryFirst and retryLast bound the pauses between tries with retry=.
	retryFirst = time.Second
	retryLast  = 10 * time.Second
	// addressPatience is how long one of several addresses may take to answer
	// where ctx sets no closer limit.
	addressPatience = 15 * time.Second
	// headStart is how long before ctx's deadline a server has timed out.
	headStart = 100 * time.Millisecond
)

// Negotiate resolves the server and, version by version and address by address, probes
// the services and calls try, until that succeeds.
//
//   - As in mount.nfs(8), only an error that says that this version cannot be had leads
//     to another version: EPROTONOSUPPORT, EINVAL, a server without the program's
//     version.
//   - NFSv3 is also tried where NFSv4 is refused a connection or knows no such path
//     (ENOENT, EPERM), as with servers without a pseudo file system.
//   - Try's errors are judged by their errno. A *[FinalError] ends it.
//   - The error is a *[Failure] or a *[ResolveError]. A server that has not answered a
//     little before ctx's deadline has timed out, so the caller learns which one it was.
func (c *Client) Negotiate(ctx context.Context, s Source, o Options, try func(context.Context, Attempt) error) (Result, error) {
	start := time.Now()
	pause := retry.Pause{First: retryFirst, Last: retryLast}
	for {
		result, err := c.negotiateOnce(ctx, s, o, try)
		if err == nil || !isTemporary(err) || time.Since(start)+pause.Due() > o.Retry || endsWithin(ctx, pause.Due()) {
			return result, err
		}
		if !pause.Wait(ctx) {
			return result, err // says more than that ctx ended
		}
	}
}

func endsWithin(ctx context.Context, d time.Duration) bool {
	end, ok := deadline.Of(ctx)
	return ok && time.Until(end) <= d
}

// isTemporary tells errors that may pass: the server or its name is not there.
func isTemporary(err error) bool {
	if _, ok := errors.AsType[*FinalError](err); ok {
		return false
	}
	for _, passing := range []unix.Errno{unix.ECONNREFUSED, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.EAGAIN, unix.ESTALE} {
		if errors.Is(err, passing) {
			return true
		}
	}
	_, unreachable := errors.AsType[*ReachError](err)
	_, unresolved := errors.AsType[*ResolveError](err)
	return unreachable || unresolved
}

// negotiation is one pass over the versions.
type negotiation struct {
	client    *Client
	source    Source
	options   Options
	addresses []netip.Addr
	try       func(context.Context, Attempt) error
	probed    map[probeKey]probe
}

type probeKey struct {
	major   int
	address netip.Addr
}

type probe struct {
	found endpoints
	err   error
}

func (c *Client) negotiateOnce(ctx context.Context, s Source, o Options, try func(context.Context, Attempt) error) (Result, error) {
	n := negotiation{client: c, source: s, options: o, try: try, probed: map[probeKey]probe{}}
	host := s.Host
	if o.Address.IsValid() {
		host = o.Address.String()
	}
	lookUp, cancel := share(ctx, 1)
	defer cancel()
	var err error
	if n.addresses, err = c.resolve(lookUp, host, o.Transport); err != nil {
		if lookUp.Err() != nil {
			err = &ResolveError{host, context.Cause(lookUp)} // a resolver may have words of its own for it
		}
		return Result{}, err
	}
	return n.run(ctx)
}

func (n *negotiation) run(ctx context.Context) (Result, error) {
	var refused []Refusal
	to3 := false // NFSv4 is ruled out
	for i, v := range n.options.Versions {
		if to3 && v.Major == 4 {
			continue
		}
		attempt, err := n.tryVersion(ctx, v)
		if err == nil {
			return Result{attempt, refused}, nil
		}
		refused = append(refused, Refusal{v, err})
		var goOn bool
		if goOn, to3 = next(v, err); !goOn || i == len(n.options.Versions)-1 || ctx.Err() != nil {
			break
		}
		if to3 && n.options.Versions[len(n.options.Versions)-1].Major == 4 {
			break
		}
	}
	return Result{}, n.failure(refused)
}

// next tells whether another version is worth trying after err, and whether
// only NFSv3 is.
func next(v Version, err error) (goOn, to3 bool) {
	if _, ok := errors.AsType[*FinalError](err); ok || v.Major != 4 {
		return false, false
	}
	if _, ok := errors.AsType[*mismatchError](err); ok {
		return true, true
	}
	if _, ok := errors.AsType[*notRegisteredError](err); ok {
		return true, true
	}
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return true, false
	case saysNoPath(err), errors.Is(err, unix.ECONNREFUSED):
		return true, true
	}
	return false, false
}

// saysNoPath tells what a server without a pseudo file system answers.
func saysNoPath(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM)
}

// tryVersion tries one version at each address.
func (n *negotiation) tryVersion(ctx context.Context, v Version) (Attempt, error) {
	var failed error
	for i, address := range n.addresses {
		attempt, err := n.tryAddress(ctx, v, address, len(n.addresses)-i)
		if err == nil {
			return attempt, nil
		}
		if _, unreachable := errors.AsType[*ReachError](err); failed == nil || !unreachable {
			failed = err
		}
		if !tryNextAddress(err) || ctx.Err() != nil {
			break
		}
	}
	return Attempt{}, failed
}

// tryNextAddress tells errors that another address of the server may not give.
func tryNextAddress(err error) bool {
	if _, ok := errors.AsType[*ReachError](err); ok {
		return true
	}
	for _, errno := range []unix.Errno{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ETIMEDOUT, unix.EACCES} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func (n *negotiation) tryAddress(ctx context.Context, v Version, address netip.Addr, left int) (Attempt, error) {
	key := probeKey{v.Major, address}
	known, ok := n.probed[key]
	if !ok {
		probeCtx, cancel := share(ctx, left)
		known.found, known.err = n.client.preflight(probeCtx, n.source, n.options, v.Major, address)
		cancel()
		n.probed[key] = known
	}
	if known.err != nil {
		return Attempt{}, known.err
	}
	attempt := n.options.attempt(n.source, v, known.found)
	return attempt, n.try(ctx, attempt)
}

// share gives the first of several addresses its part of the time left, and the
// last one all of it but a twentieth, at most headStart.
func share(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	end, limited := deadline.Of(ctx)
	if !limited && parts == 1 {
		return context.WithCancel(ctx)
	}
	left := time.Until(end)
	left -= min(left/20, headStart)
	if parts == 1 {
		return context.WithTimeout(ctx, left)
	}
	patience := addressPatience
	if limited {
		patience = min(patience, left/time.Duration(parts))
	}
	return context.WithTimeout(ctx, patience)
}

// failure picks the error that tells most: the last version's, unless that is
// NFSv3 and was not even asked for the path while NFSv4 gave an answer.
func (n *negotiation) failure(refused []Refusal) error {
	last := len(refused) - 1
	main := refused[last]
	if last > 0 && main.Version.Major == 3 && !tellsMore(main.Err, refused[last-1].Err) {
		main = refused[last-1]
		refused = append(refused[:last-1:last-1], refused[last])
	} else {
		refused = refused[:last]
	}
	if isVersion(main.Err) {
		main.Err = &VersionError{Asked: n.options.Asked, Err: main.Err}
	}
	return &Failure{Err: main.Err, Version: main.Version, Refused: refused}
}

// tellsMore compares an error of NFSv3 with the earlier one of NFSv4. Where a
// server wants another security flavour, Linux has EPERM for NFSv4 and EINVAL,
// which may mean anything, for NFSv3.
func tellsMore(err3, err4 error) bool {
	if errors.Is(err3, unix.EINVAL) && errors.Is(err4, unix.EPERM) {
		return false
	}
	if _, ok := errors.AsType[*StatdError](err3); ok {
		return !saysNoPath(err4)
	}
	_, unreachable := errors.AsType[*ReachError](err3)
	return !unreachable && !isVersion(err3)
}

// isVersion tells errors that say that a version is not to be had.
func isVersion(err error) bool {
	_, mismatch := errors.AsType[*mismatchError](err)
	_, unregistered := errors.AsType[*notRegisteredError](err)
	return mismatch || unregistered || errors.Is(err, unix.EPROTONOSUPPORT)
}

// Attempt is one file system to try to make.
type Attempt struct {
	Version Version
	// Address is the server's.
	Address netip.Addr
	// Source and Options are for the kernel, one option to an element, in
	// order.
	Source  string
	Options []string
}

// defaultPort is the NFS port, but for RDMA.
const defaultPort = 2049

// endpoints are where the services of one server are.
type endpoints struct {
	address netip.Addr
	// port is the NFS port, 0 for the kernel's default (RDMA has its own).
	port uint16
	// local is this node's address towards the server.
	local netip.Addr
	// Of NFSv3 only:
	mountAddress  netip.Addr
	mountPort     uint16
	mountProtocol string
}

// attempt works out the kernel's parameters.
func (o Options) attempt(s Source, v Version, e endpoints) Attempt {
	var words []string
	set := func(key, value string) { words = append(words, key+"="+value) }
	rest := o.Rest
	if len(rest) > 0 && rest[0] == "sloppy" {
		words, rest = append(words, rest[0]), rest[1:]
	}
	set("vers", v.String())
	set("proto", netid(o.Transport.Protocol, e.address))
	set("addr", e.address.String())
	// Without a port the kernel asks rpcbind for NFSv3, and takes 2049 for NFSv4.
	if e.port != 0 && (o.Port != nil || v.Major == 3 || e.port != defaultPort) {
		set("port", strconv.Itoa(int(e.port)))
	}
	if v.Major == 4 {
		if e.local.IsValid() {
			set("clientaddr", e.local.String())
		}
		return Attempt{v, e.address, s.String(), append(words, rest...)}
	}
	if e.mountAddress != e.address {
		set("mountaddr", e.mountAddress.String())
	}
	if o.MountHost != "" {
		set("mounthost", o.MountHost)
	}
	set("mountvers", o.mountVersion())
	set("mountproto", netid(e.mountProtocol, e.mountAddress))
	set("mountport", strconv.Itoa(int(e.mountPort)))
	return Attempt{v, e.address, s.String(), append(words, rest...)}
}

// mountVersion is the version of the MOUNT protocol: NFSv3 file handles come
// from 3.
func (o Options) mountVersion() string {
	if o.MountVersion != "" {
		return o.MountVersion
	}
	return "3"
}
