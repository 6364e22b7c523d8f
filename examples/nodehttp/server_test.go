package nodehttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// pipeListener is a listener without a kernel, for virtual time.
type pipeListener struct {
	connecting chan net.Conn
	closed     chan struct{}
	once       sync.Once

	mu         sync.Mutex
	open, most int
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.connecting:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open++
		l.most = max(l.most, l.open)
		return &limitedConn{Conn: conn, done: func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.open--
		}}, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) mostOpen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// dial connects, as soon as it is accepted.
func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	go func() {
		select {
		case l.connecting <- server:
		case <-l.closed:
			server.Close()
		}
	}()
	return client
}

// Connections that say nothing, begin a request, or do not read their answer, take
// no more of the node than its limit. Without a whole request they delay nobody; with
// one, for little more than a minute each.
func TestIdleConnectionsStarveNobody(t *testing.T) {
	for name, tc := range map[string]struct {
		begin string
		delay time.Duration // at most, of the others
	}{
		"silent":          {"", 0},
		"a request begun": {"GET /healthz HT", 0},
		"a body begun":    {"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1", 6 * (readTimeout + writeTimeout)},
		"no reader":       {"GET /explain HTTP/1.1\r\nHost: x\r\n\r\n", 6 * (readTimeout + writeTimeout)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipeListener{connecting: make(chan net.Conn), closed: make(chan struct{})}
				s := &Server{listener: l}
				s.Serve(NewMetrics(idleManager(t), nil), func() []volumemanager.VolumeStatus { return nil })
				defer s.Close()
				for range 5 * maxConnections {
					idle := l.dial()
					defer idle.Close()
					go func() { _, _ = io.WriteString(idle, tc.begin) }()
				}
				synctest.Wait()
				if most := l.mostOpen(); most != maxConnections+1 { // one waits for room
					t.Errorf("%d connections are open", most)
				}
				// Whoever comes now has to wait for those before it at most.
				began := time.Now()
				conn := l.dial()
				defer conn.Close()
				go func() { _, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), "ok") {
					t.Errorf("%q, %v", text, err)
				}
				if took := time.Since(began); took > tc.delay || l.mostOpen() > maxConnections+1 {
					t.Errorf("answered after %v; %d connections were open", took, l.mostOpen())
				}
			})
		})
	}
}

// At a loopback address a request must have a name that is this machine's: a browser is led
// there under other ones.
func TestNamesOfOthersAreRefused(t *testing.T) {
	for _, tc := range []struct {
		listener net.Addr
		host     string
		want     int
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "127.0.0.1:9090", http.StatusOK},
		{&net.TCPAddr{IP: net.IPv6loopback}, "[::1]:9090", http.StatusOK},
		{&net.TCPAddr{IP: net.IPv6loopback}, "[::1]", http.StatusOK},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "LOCALHOST.:9090", http.StatusOK},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "node.localhost", http.StatusOK},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "", http.StatusOK},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "evil.example:9090", http.StatusForbidden},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "localhost.evil.example", http.StatusForbidden},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "127.0.0.1.evil.example", http.StatusForbidden},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, "node1.example:9090", http.StatusOK}, // its names are not known
		{&net.UnixAddr{}, "podvol", http.StatusOK},
	} {
		s := &Server{listener: addressed{tc.listener}}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/explain", nil)
		r.Host = tc.host
		s.forOurNames(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if w.Code != tc.want {
			t.Errorf("%q at %v is answered %d", tc.host, tc.listener, w.Code)
		}
	}
}

// addressed is a listener that has an address, and nothing else.
type addressed struct{ addr net.Addr }

func (a addressed) Addr() net.Addr            { return a.addr }
func (a addressed) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (a addressed) Close() error              { return nil }

// A socket replaces one that a killed process has left, and goes with the server.
func TestListenSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ListenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(NewMetrics(idleManager(t), nil), func() []volumemanager.VolumeStatus { return nil }, Page{Path: "/more", Value: func() any { return []int{1} }})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	for page, want := range map[string]string{"/more": "[\n  1\n]\n", "/explain": "[]\n"} {
		answer, err := client.Get("http://node" + page)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(answer.Body); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v", page, text, err)
		}
		answer.Body.Close()
	}
	s.Close()
	s.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

// idleManager is a manager that does nothing, for its subscriptions.
func idleManager(t *testing.T) *volumemanager.Manager {
	t.Helper()
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir: "/nonexistent/root", NodeName: "n", Objects: objects.NewStore(), Plugins: plugins.All(), Mounter: fakemount.New(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return manager
}

func TestParseAddress(t *testing.T) {
	for value, want := range map[string]string{
		"9090": "127.0.0.1:9090", ":9090": "127.0.0.1:9090", "0.0.0.0:9090": "0.0.0.0:9090", "[::1]:9090": "[::1]:9090",
		"localhost:0": "localhost:0", "http": "", "1:2:3": "", "localhost:": "", "70000": "",
	} {
		got, err := ParseAddress(value)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
	}
}
