package nfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// hosts is a resolver of fixed names.
type hosts map[string][]string

func (h hosts) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	found, ok := h[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var addresses []netip.Addr
	for _, a := range found {
		addresses = append(addresses, netip.MustParseAddr(a))
	}
	return addresses, nil
}

func mustParse(t *testing.T, words ...string) Options {
	t.Helper()
	o, err := ParseOptions("nfs", words)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// kernel answers attempts by version; what it has no answer for it mounts.
type kernel struct {
	says  map[string]error
	tried []string
}

func (k *kernel) try(_ context.Context, a Attempt) error {
	k.tried = append(k.tried, a.Version.String())
	return k.says[a.Version.String()]
}

// full is a server with all services, registered.
func full(t *testing.T, address string, nfs service) *fakeServer {
	s := serve(t, address, map[program]service{programPortmap: {low: 2, high: 4}})
	s.set(programNFS, nfs)
	s.set(programMount, service{low: 1, high: 3})
	s.set(programStatd, service{low: 1, high: 1})
	return s
}

func TestVersionFallback(t *testing.T) {
	const all = "4.2 4.1 4.0 3"
	notThis, invalid, noPath := error(unix.EPROTONOSUPPORT), error(unix.EINVAL), error(unix.ENOENT)
	v4 := func(err error) map[string]error { return map[string]error{"4.2": err, "4.1": err, "4.0": err} }
	with3 := func(says map[string]error, err error) map[string]error { says["3"] = err; return says }
	tests := map[string]struct {
		options []string
		says    map[string]error
		tried   string // versions that reached the kernel
		want    error  // nil: mounted with the last tried
	}{
		"the newest":                     {nil, nil, "4.2", nil},
		"4.1 at most":                    {nil, map[string]error{"4.2": notThis}, "4.2 4.1", nil},
		"4.0 only":                       {nil, map[string]error{"4.2": invalid, "4.1": notThis}, "4.2 4.1 4.0", nil},
		"3 only":                         {nil, v4(notThis), all, nil},
		"no pseudo file system":          {nil, v4(noPath), "4.2 3", nil},
		"not permitted":                  {nil, v4(unix.EPERM), "4.2 3", nil},
		"refused by the kernel's client": {nil, v4(unix.ECONNREFUSED), "4.2 3", nil},
		"denied":                         {nil, v4(unix.EACCES), "4.2", unix.EACCES},
		"timed out":                      {nil, v4(unix.ETIMEDOUT), "4.2", unix.ETIMEDOUT},
		"stale":                          {nil, v4(unix.ESTALE), "4.2", unix.ESTALE},
		"no path with either":            {nil, with3(v4(noPath), noPath), "4.2 3", noPath},
		"denied by 3":                    {nil, with3(v4(noPath), unix.EACCES), "4.2 3", unix.EACCES},
		"another security flavour":       {nil, with3(v4(unix.EPERM), invalid), "4.2 3", unix.EPERM},
		"a wrong option":                 {nil, map[string]error{"4.2": &FinalError{invalid}}, "4.2", invalid},
		"just 4.1":                       {[]string{"vers=4.1"}, v4(notThis), "4.1", notThis},
		"4, whichever":                   {[]string{"vers=4"}, map[string]error{"4.2": notThis}, "4.2 4.1", nil},
		"4, and none":                    {[]string{"vers=4"}, v4(notThis), "4.2 4.1 4.0", notThis},
		"4 does not become 3":            {[]string{"vers=4"}, v4(noPath), "4.2", noPath},
		"just 3":                         {[]string{"vers=3"}, nil, "3", nil},
		"3 by an option of its own":      {[]string{"mountproto=tcp"}, nil, "3", nil},
		"3, but the kernel does not":     {[]string{"vers=3"}, map[string]error{"3": notThis}, "3", notThis},
	}
	s := full(t, "127.0.0.1", service{low: 3, high: 4})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			k := kernel{says: test.says}
			o := mustParse(t, append(test.options, "port="+strconv.Itoa(int(s.address.Port())))...)
			result, err := s.client().Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, o, k.try)
			if tried := strings.Join(k.tried, " "); tried != test.tried {
				t.Errorf("tried %q, want %q", tried, test.tried)
			}
			if test.want == nil {
				if err != nil || result.Attempt.Version.String() != k.tried[len(k.tried)-1] || len(result.Refused) != len(k.tried)-1 {
					t.Errorf("%+v, %v", result, err)
				}
				return
			}
			if _, ok := errors.AsType[*Failure](err); !ok || !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// What the server's RPC answers rules versions out before the kernel is asked.
func TestServerRulesVersionsOut(t *testing.T) {
	tests := map[string]struct {
		nfs     service
		options string
		tried   string
		want    string // in the error
	}{
		"3 only":                {service{low: 2, high: 3}, "fg", "3", ""},
		"3 only, 4 asked":       {service{low: 2, high: 3}, "vers=4.2", "", "version 4.2 was asked for: the server speaks versions 2 to 3 of NFS, not 4"},
		"4 only, 3 asked":       {service{low: 4, high: 4}, "vers=3", "", "version 3 was asked for"},
		"2 only":                {service{low: 2, high: 2}, "fg", "", "speaks version 2 of NFS, not 4"},
		"4 only, denied by 4.2": {service{low: 4, high: 4}, "vers=4", "4.2 4.1 4.0", "protocol not supported"},
	}
	for name, test := range tests {
		s := full(t, "127.0.0.1", test.nfs)
		k := kernel{}
		if test.nfs.low == 4 {
			k.says = map[string]error{"4.2": unix.EPROTONOSUPPORT, "4.1": unix.EPROTONOSUPPORT, "4.0": unix.EPROTONOSUPPORT}
		}
		o := mustParse(t, test.options, "port="+strconv.Itoa(int(s.address.Port())))
		_, err := s.client().Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, o, k.try)
		if tried := strings.Join(k.tried, " "); tried != test.tried {
			t.Errorf("%s: tried %q, want %q (%v)", name, tried, test.tried, err)
		}
		if test.want == "" && err != nil || test.want != "" && !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if _, ok := errors.AsType[*VersionError](err); test.want != "" && !ok {
			t.Errorf("%s: %v is no *VersionError", name, err)
		}
	}
}

// Nothing listens where NFSv4 is, but rpcbind knows an NFSv3 elsewhere.
func TestThreeBehindRPCBind(t *testing.T) {
	s := full(t, "127.0.0.9", service{low: 3, high: 3})
	c := s.client()
	c.RPCBindPort = s.address.Port()
	k := kernel{}
	o := mustParse(t, "nolock") // NFSv4 would be at 2049, where nothing is
	result, err := c.Negotiate(t.Context(), Source{"127.0.0.9", "/e"}, o, k.try)
	if err != nil || result.Attempt.Version.Major != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	want := fmt.Sprintf("vers=3 proto=tcp addr=127.0.0.9 port=%d mountvers=3 mountproto=tcp mountport=%[1]d nolock", s.address.Port())
	if got := strings.Join(result.Attempt.Options, " "); got != want {
		t.Errorf("options %s\nwant    %s", got, want)
	}
	if len(result.Refused) != 1 || !errors.Is(result.Refused[0].Err, unix.ECONNREFUSED) {
		t.Errorf("refused %v", result.Refused)
	}
}

func TestNothingThere(t *testing.T) {
	c := &Client{Resolver: hosts{}, RPCBindPort: freePort(t, "127.0.0.1")}
	k := kernel{}
	o := mustParse(t, "port="+strconv.Itoa(int(freePort(t, "127.0.0.1"))))
	_, err := c.Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, o, k.try)
	failure, ok := errors.AsType[*Failure](err)
	if !ok || !errors.Is(err, unix.ECONNREFUSED) || failure.Version.Major != 4 || len(k.tried) != 0 {
		t.Errorf("%v, tried %v", err, k.tried)
	}
}

func TestLocksNeedStatd(t *testing.T) {
	noPath := map[string]error{"4.2": unix.ENOENT}
	gone := map[string]error{"4.2": unix.EPROTONOSUPPORT, "4.1": unix.EPROTONOSUPPORT, "4.0": unix.EPROTONOSUPPORT}
	tests := map[string]struct {
		statd   service
		options []string
		says    map[string]error
		refused bool // by the missing statd
	}{
		"there":                    {service{low: 1, high: 1}, []string{"vers=3"}, nil, false},
		"not registered":           {service{low: 9, high: 9}, []string{"vers=3"}, nil, true},
		"registered and gone":      {service{rude: true, low: 1, high: 1}, []string{"vers=3"}, nil, true},
		"nolock":                   {service{low: 9, high: 9}, []string{"vers=3", "nolock"}, nil, false},
		"all locks local":          {service{low: 9, high: 9}, []string{"vers=3", "local_lock=all"}, nil, false},
		"some locks local":         {service{low: 9, high: 9}, []string{"vers=3", "local_lock=flock"}, nil, true},
		"nolock taken back":        {service{low: 9, high: 9}, []string{"vers=3", "nolock", "lock"}, nil, true},
		"fallen back to 3":         {service{low: 9, high: 9}, []string{"fg"}, gone, true},
		"4 has locks of its own":   {service{low: 9, high: 9}, []string{"vers=4"}, nil, false},
		"4 does not know the path": {service{low: 9, high: 9}, []string{"fg"}, noPath, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := full(t, "127.0.0.1", service{low: 3, high: 4})
			s.set(programStatd, test.statd)
			k := kernel{says: test.says}
			o := mustParse(t, append(test.options, "port="+strconv.Itoa(int(s.address.Port())))...)
			_, err := s.client().Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, o, k.try)
			if _, refused := errors.AsType[*StatdError](err); refused != test.refused {
				t.Errorf("%v", err)
			}
			if strings.Contains(strings.Join(k.tried, " "), "3") && test.refused {
				t.Errorf("tried %v without locks", k.tried)
			}
			if test.says["4.2"] == unix.ENOENT {
				failure, ok := errors.AsType[*Failure](err)
				if !ok || !errors.Is(err, unix.ENOENT) || len(failure.Refused) != 1 || !strings.Contains(err.Error(), "rpc.statd") {
					t.Errorf("%v, want both reasons", err)
				}
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	s := full(t, "127.0.0.1", service{low: 3, high: 4})
	port := "port=" + strconv.Itoa(int(s.address.Port()))
	six := full(t, "::1", service{low: 3, high: 4})
	sixPort := "port=" + strconv.Itoa(int(six.address.Port()))
	tests := map[string]struct {
		host    string
		options []string
		hosts   hosts
		want    string // the address, or empty: none
	}{
		"a literal":                     {"127.0.0.1", []string{port}, nil, "127.0.0.1"},
		"an IPv6 literal":               {"::1", []string{sixPort}, nil, "::1"},
		"a name":                        {"s", []string{port}, hosts{"s": {"127.0.0.1"}}, "127.0.0.1"},
		"the second answers":            {"s", []string{port}, hosts{"s": {"127.0.0.2", "127.0.0.1"}}, "127.0.0.1"},
		"IPv4 within IPv6":              {"s", []string{port}, hosts{"s": {"::ffff:127.0.0.1"}}, "127.0.0.1"},
		"the family of the protocol":    {"s", []string{sixPort, "proto=tcp6"}, hosts{"s": {"127.0.0.1", "::1"}}, "::1"},
		"the other family":              {"s", []string{port, "proto=tcp"}, hosts{"s": {"::1", "127.0.0.1"}}, "127.0.0.1"},
		"no address of that family":     {"s", []string{port, "proto=tcp6"}, hosts{"s": {"127.0.0.1"}}, ""},
		"an unknown name":               {"s", []string{port}, nil, ""},
		"an unknown name, but an addr=": {"s", []string{port, "addr=127.0.0.1"}, nil, "127.0.0.1"},
	}
	for name, test := range tests {
		c := &Client{Resolver: test.hosts}
		result, err := c.Negotiate(t.Context(), Source{test.host, "/e"}, mustParse(t, test.options...), (&kernel{}).try)
		if test.want == "" {
			if resolve, ok := errors.AsType[*ResolveError](err); !ok || resolve.Host != "s" {
				t.Errorf("%s: %+v, %v", name, result, err)
			}
			continue
		}
		if err != nil || result.Attempt.Address.String() != test.want || !strings.Contains(strings.Join(result.Attempt.Options, " "), "clientaddr="+test.want) {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
}

// MOUNT may be served elsewhere, or over UDP only.
func TestMountServer(t *testing.T) {
	s := full(t, "127.0.0.1", service{low: 3, high: 3})
	other := full(t, "127.0.0.8", service{low: 3, high: 3})
	s.set(programMount, service{low: 1, high: 3, ports: map[string]uint16{"udp": s.address.Port()}})
	c := &Client{Resolver: hosts{"other": {"127.0.0.8"}}, RPCBindPort: s.address.Port()}
	result, err := c.Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, mustParse(t, "vers=3"), (&kernel{}).try)
	if got := strings.Join(result.Attempt.Options, " "); err != nil || !strings.Contains(got, "mountproto=udp") {
		t.Errorf("over UDP only: %s, %v", got, err)
	}
	mountPort := strconv.Itoa(int(other.address.Port()))
	result, err = c.Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, mustParse(t, "mounthost=other", "mountport="+mountPort), (&kernel{}).try)
	if got := strings.Join(result.Attempt.Options, " "); err != nil || !strings.Contains(got, "mountaddr=127.0.0.8 mounthost=other mountvers=3 mountproto=tcp mountport="+mountPort) {
		t.Errorf("elsewhere: %s, %v", got, err)
	}
	if !other.wasAsked(programMount) {
		t.Error("the other host was not looked at")
	}
	_, err = c.Negotiate(t.Context(), Source{"127.0.0.1", "/e"}, mustParse(t, "mounthost=unknown"), (&kernel{}).try)
	if resolve, ok := errors.AsType[*ResolveError](err); !ok || resolve.Host != "unknown" {
		t.Errorf("an unknown mounthost: %v", err)
	}
}

// announced is a context that ends later than it says: what is done by the time
// that it says does not depend on how busy the machine is.
type announced struct {
	context.Context
	end time.Time
}

func (a announced) Deadline() (time.Time, bool) { return a.end, true }

// A server that accepts and says nothing costs no more than the context.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	s := full(t, "127.0.0.1", service{silent: true})
	late, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx := announced{late, time.Now().Add(time.Second)}
	k := kernel{}
	_, err := s.client().Negotiate(ctx, Source{"127.0.0.1", "/e"}, mustParse(t, "port="+strconv.Itoa(int(s.address.Port()))), k.try)
	if reach, ok := errors.AsType[*ReachError](err); !ok || !reach.Timeout() || ctx.Err() != nil || len(k.tried) != 0 {
		t.Errorf("%v, tried %v; ended: %v", err, k.tried, ctx.Err())
	}
}

// What the last address is given leaves the caller time to say what failed.
func TestShareOfTheLastAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for limit, spare := range map[time.Duration]time.Duration{time.Second: time.Second / 20, time.Hour: headStart} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			shared, cancel := share(ctx, 1)
			defer cancel()
			if end, limited := shared.Deadline(); !limited || time.Until(end) != limit-spare {
				t.Errorf("of %v it gets %v", limit, time.Until(end))
			}
		}
	})
}

// The first of two addresses does not eat the time of the second.
func TestSilentAddress(t *testing.T) {
	t.Parallel()
	s := full(t, "127.0.0.1", service{low: 3, high: 4})
	silent, err := net.Listen("tcp", net.JoinHostPort("127.0.0.7", strconv.Itoa(int(s.address.Port()))))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := &Client{Resolver: hosts{"s": {"127.0.0.7", "127.0.0.1"}}}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // a busy machine has the second one answer late
	defer cancel()
	result, err := c.Negotiate(ctx, Source{"s", "/e"}, mustParse(t, "port="+strconv.Itoa(int(s.address.Port()))), (&kernel{}).try)
	if err != nil || result.Attempt.Address.String() != "127.0.0.1" {
		t.Errorf("%+v, %v", result, err)
	}
}

// lateName is a name that resolves from the third time on.
type lateName struct{ asked int }

func (r *lateName) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if r.asked++; r.asked < 3 {
		return nil, errors.New("not yet")
	}
	return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
}

// With retry= what may pass is tried again; without, and after other errors, not.
func TestRetry(t *testing.T) {
	for _, test := range []struct {
		options string
		says    error
		asked   int
		took    time.Duration
	}{
		{"retry=1", nil, 3, 3 * time.Second},
		{"retry=0", nil, 1, 0},
		{"fg", nil, 1, 0},
		{"retry=1", unix.EACCES, 3, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			resolver := &lateName{}
			c := &Client{Resolver: resolver}
			start := time.Now()
			// RDMA, since nothing is asked over the network for it.
			_, err := c.Negotiate(t.Context(), Source{"s", "/e"}, mustParse(t, test.options, "proto=rdma", "vers=4.2", "clientaddr=10.0.0.2"),
				func(context.Context, Attempt) error { return test.says })
			if resolver.asked != test.asked || time.Since(start) != test.took {
				t.Errorf("%s: asked %d times in %v", test.options, resolver.asked, time.Since(start))
			}
			if mounted := err == nil; mounted != (test.asked == 3 && test.says == nil) {
				t.Errorf("%s: %v", test.options, err)
			}
		})
	}
}

func TestRetryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{Resolver: hosts{}}
		start := time.Now()
		_, err := c.Negotiate(t.Context(), Source{"s", "/e"}, mustParse(t, "retry=1"), nil)
		if took := time.Since(start); err == nil || took > time.Minute || took < 45*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start = time.Now()
		_, err = c.Negotiate(ctx, Source{"s", "/e"}, mustParse(t, "retry=100"), nil)
		if _, ok := errors.AsType[*ResolveError](err); !ok || time.Since(start) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
