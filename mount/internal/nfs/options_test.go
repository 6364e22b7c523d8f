package nfs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func versionList(versions []Version) string {
	var words []string
	for _, v := range versions {
		words = append(words, v.String())
	}
	return strings.Join(words, " ")
}

func TestVersionsAskedFor(t *testing.T) {
	tests := []struct{ fstype, options, versions, asked string }{
		{"nfs", "", "4.2 4.1 4.0 3", ""},
		{"nfs4", "", "4.2 4.1 4.0", ""},
		{"nfs", "vers=4", "4.2 4.1 4.0", "4"},
		{"nfs", "v4", "4.2 4.1 4.0", "4"},
		{"nfs", "nfsvers=4.1", "4.1", "4.1"},
		{"nfs", "v4.0", "4.0", "4.0"},
		{"nfs4", "vers=4.2", "4.2", "4.2"},
		{"nfs", "vers=4,minorversion=1", "4.1", "4.1"},
		{"nfs", "minorversion=0,vers=4", "4.0", "4.0"},
		{"nfs4", "minorversion=2", "4.2", "4.2"},
		{"nfs", "minorversion=1", "4.1", "4.1"},
		{"nfs", "vers=4.1,nfsvers=3", "3", "3"},
		{"nfs", "v3", "3", "3"},
		{"nfs", "udp", "3", ""},
		{"nfs", "proto=udp6", "3", ""},
		{"nfs", "mountproto=tcp", "3", ""},
		{"nfs", "mounthost=other", "3", ""},
		{"nfs", "mountvers=3", "3", ""},
		{"nfs", "mountaddr=10.0.0.1", "3", ""},
		{"nfs", "mountport=20048", "4.2 4.1 4.0 3", ""},
		{"nfs", "mountvers=3,vers=4", "4.2 4.1 4.0", "4"},
	}
	for _, test := range tests {
		var words []string
		if test.options != "" {
			words = strings.Split(test.options, ",")
		}
		o, err := ParseOptions(test.fstype, words)
		if got := versionList(o.Versions); err != nil || got != test.versions || o.Asked != test.asked {
			t.Errorf("%s %q: %q asked %q, %v; want %q asked %q", test.fstype, test.options, got, o.Asked, err, test.versions, test.asked)
		}
	}
}

func TestRefusedOptions(t *testing.T) {
	tests := map[string]string{ // the name that the error must say
		"vers=": "vers", "vers=x": "vers", "nfsvers=04": "nfsvers", "vers=4.": "vers", "vers=4.01": "vers", "vers=-3": "vers",
		"vers=3.1": "vers", "vers=3,minorversion=1": "minorversion", "minorversion=x": "minorversion",
		"proto=sctp": "proto", "mountproto=rdma": "mountproto", "mountproto=": "mountproto",
		"port=65536": "port", "port=": "port", "mountport=x": "mountport",
		"addr=server": "addr", "clientaddr=": "clientaddr", "mountaddr=1.2.3": "mountaddr", "mounthost=": "mounthost",
		"mountvers=4": "mountvers", "retry=-1": "retry", "retry=soon": "retry", "nfsprog=100003": "nfsprog", "mountprog=1": "mountprog",
		"udp,vers=4": "vers",
	}
	for options, name := range tests {
		_, err := ParseOptions("nfs", strings.Split(options, ","))
		refused, ok := errors.AsType[*OptionError](err)
		if !ok || refused.Option != name {
			t.Errorf("%q: %v, want %s refused", options, err, name)
		}
	}
	if _, err := ParseOptions("nfs4", []string{"vers=3"}); err == nil {
		t.Error("nfs4 with vers=3 is accepted")
	}
	for _, options := range []string{"vers=2", "v2", "vers=4.3", "vers=5", "minorversion=3"} {
		_, err := ParseOptions("nfs", []string{options})
		if _, ok := errors.AsType[*VersionError](err); !ok {
			t.Errorf("%q: %v, want a *VersionError", options, err)
		}
	}
}

func port(n uint16) *uint16 { return &n }

func TestParseOptions(t *testing.T) {
	tests := map[string]Options{
		"fg,bg,retry=3":                  {Retry: 3 * time.Minute},
		"soft,timeo=50,retrans=2,rw":     {Rest: []string{"soft", "timeo=50", "retrans=2", "rw"}},
		"frob,sloppy":                    {Rest: []string{"sloppy", "frob"}},
		`context="system_u:a,b",sec=sys`: {Rest: []string{`context="system_u:a,b"`, "sec=sys"}},
		"tcp,port=0":                     {Transport: Transport{"tcp", 0}, Port: port(0)},
		"proto=tcp":                      {Transport: Transport{"tcp", 4}},
		"udp,proto=tcp6":                 {Transport: Transport{"tcp", 6}},
		"proto=rdma,port=20049":          {Transport: Transport{"rdma", 4}, Port: port(20049)},
		"addr=fd00::1,clientaddr=::ffff:10.0.0.2": {
			Address: netip.MustParseAddr("fd00::1"), ClientAddress: netip.MustParseAddr("10.0.0.2")},
		"mounthost=[fd00::2],mountport=9,mountproto=udp6,mountvers=3,mountaddr=fd00::3": {
			MountHost: "fd00::2", MountPort: port(9), MountTransport: Transport{"udp", 6}, MountVersion: "3",
			MountAddress: netip.MustParseAddr("fd00::3")},
		"nolock":                          {LocalLocks: true, Rest: []string{"nolock"}},
		"nolock,lock":                     {Rest: []string{"nolock", "lock"}},
		"nolock,local_lock=flock":         {LocalLocks: true, Rest: []string{"nolock", "local_lock=flock"}},
		"local_lock=all":                  {LocalLocks: true, Rest: []string{"local_lock=all"}},
		"local_lock=all,local_lock=posix": {Rest: []string{"local_lock=all", "local_lock=posix"}},
		"lock,local_lock=all":             {Rest: []string{"lock", "local_lock=all"}},
		"local_lock=flock":                {Rest: []string{"local_lock=flock"}},
	}
	for words, want := range tests {
		list := strings.FieldsFunc(words, func(r rune) bool { return r == ',' })
		if strings.Contains(words, `"`) {
			list = []string{`context="system_u:a,b"`, "sec=sys"}
		}
		if want.Transport.Protocol == "" {
			want.Transport.Protocol = "tcp"
		}
		got, err := ParseOptions("nfs", list)
		ignore := cmp.Options{cmpopts.IgnoreFields(Options{}, "Versions", "Asked"), cmpopts.IgnoreUnexported(Options{}), cmpopts.EquateComparable(netip.Addr{})}
		if diff := cmp.Diff(want, got, ignore); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", words, err, diff)
		}
	}
}

func TestNeedsHelper(t *testing.T) {
	for word, want := range map[string]bool{
		"sec=krb5": true, "sec=sys:krb5p": true, "xprtsec=tls": true, "xprtsec=mtls": true,
		"sec=sys": false, "xprtsec=none": false, "vers=4": false,
	} {
		reason, needs := NeedsHelper([]string{"ro", word})
		if needs != want || needs != (reason != "") {
			t.Errorf("%s: %v %q", word, needs, reason)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	for _, seed := range []string{"vers=4.2", "minorversion=1,vers=4", "proto=tcp6,addr=::1", "mountport=1,retry=2", "nolock,sloppy,x=\"a", "\naddr=", ""} {
		f.Add("nfs", seed)
		f.Add("nfs4", seed)
	}
	f.Fuzz(func(t *testing.T, fstype, list string) {
		o, err := ParseOptions(fstype, strings.Split(list, ","))
		if err != nil {
			return
		}
		if len(o.Versions) == 0 {
			t.Fatalf("%q leaves no version", list)
		}
		address := netip.MustParseAddr("10.0.0.1")
		for _, v := range o.Versions {
			a := o.attempt(Source{"s", "/p"}, v, endpoints{address: address, port: 2049, mountAddress: address, mountPort: 1, mountProtocol: "tcp"})
			for _, key := range []string{"vers=", "addr=", "proto="} {
				if n := countWithPrefix(a.Options, key); n != 1 {
					t.Errorf("%q gives the kernel %d times %s: %q", list, n, key, a.Options)
				}
			}
		}
	})
}

func countWithPrefix(words []string, prefix string) (n int) {
	for _, word := range words {
		if strings.HasPrefix(word, prefix) {
			n++
		}
	}
	return n
}
