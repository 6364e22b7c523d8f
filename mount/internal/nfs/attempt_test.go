package nfs

import (
	"net/netip"
	"strings"
	"testing"
)

func TestAttempt(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")
	local := netip.MustParseAddr("10.0.0.2")
	tests := map[string]struct {
		options string
		version Version
		at      endpoints
		want    string
	}{
		"4.2": {"soft", Version{4, 2}, endpoints{address: four, port: 2049, local: local},
			"vers=4.2 proto=tcp addr=10.0.0.1 clientaddr=10.0.0.2 soft"},
		"4.0 over IPv6 at another port": {"vers=4.0,port=2050", Version{4, 0}, endpoints{address: six, port: 2050},
			"vers=4.0 proto=tcp6 addr=fe80::1%eth0 port=2050"},
		"the usual port, asked for": {"port=2049", Version{4, 1}, endpoints{address: four, port: 2049, local: local},
			"vers=4.1 proto=tcp addr=10.0.0.1 port=2049 clientaddr=10.0.0.2"},
		"3": {"nolock,hard", Version{3, 0}, endpoints{address: four, port: 2049, mountAddress: four, mountPort: 20048, mountProtocol: "udp"},
			"vers=3 proto=tcp addr=10.0.0.1 port=2049 mountvers=3 mountproto=udp mountport=20048 nolock hard"},
		"3 with mountd elsewhere": {"mounthost=other", Version{3, 0}, endpoints{address: six, port: 2049, mountAddress: four, mountPort: 1, mountProtocol: "tcp"},
			"vers=3 proto=tcp6 addr=fe80::1%eth0 port=2049 mountaddr=10.0.0.1 mounthost=other mountvers=3 mountproto=tcp mountport=1"},
		"RDMA leaves the port to the kernel": {"proto=rdma", Version{4, 2}, endpoints{address: four},
			"vers=4.2 proto=rdma addr=10.0.0.1"},
		"sloppy comes first": {"frob,sloppy", Version{4, 2}, endpoints{address: four, port: 2049},
			"sloppy vers=4.2 proto=tcp addr=10.0.0.1 frob"},
	}
	for name, test := range tests {
		o, err := ParseOptions("nfs", strings.Split(test.options, ","))
		if err != nil {
			t.Fatal(err)
		}
		before := strings.Join(o.Rest, " ")
		got := o.attempt(Source{"server", "/p"}, test.version, test.at)
		if words := strings.Join(got.Options, " "); words != test.want || got.Source != "server:/p" {
			t.Errorf("%s: %s %s\nwant %s", name, got.Source, words, test.want)
		}
		if strings.Join(o.Rest, " ") != before {
			t.Errorf("%s: the options were changed", name)
		}
	}
}
