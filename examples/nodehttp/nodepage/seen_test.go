package nodepage

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

// someNode is a node with a bit of everything.
func someNode() []volumemanager.VolumeStatus {
	rows := []volumemanager.VolumeStatus{mounted("web-0", "data"), mounted("web-0", "config"), mounted("web-1", "data"), mounted("web-1", "scratch")}
	rows[1].Plugin, rows[1].Source, rows[1].Since = "kubernetes.io/configmap", "shop/web-settings", time.Now().Add(-3*24*time.Hour)
	rows[3].Plugin, rows[3].Source = "kubernetes.io/empty-dir", "a directory of this pod"
	helper := failed("mail-0", "spool", &volume.Error{Op: "SetUp", Plugin: "kubernetes.io/nfs", Volume: "spool", Pod: types.NamespacedName{Namespace: "shop", Name: "mail-0"},
		Err: &mount.Error{Op: "mount", Source: "10.0.0.9:/spool", Target: "/var/lib/podvol/pods/1/volumes/spool", FSType: "nfs", Cause: mount.ErrHelperMissing}})
	helper.Server = volumesource.Health{Source: "10.0.0.9", Failures: 4, Since: time.Now().Add(-time.Hour), RetryAt: time.Now().Add(time.Minute), Err: errors.New("connection timed out")}
	unbound := failed("db-0", "disk", &claimbinding.Error{Claim: types.NamespacedName{Namespace: "shop", Name: "disk-db-0"}, Detail: "no PersistentVolume is large enough", Err: claimbinding.ErrUnbound})
	unbound.Claim = types.NamespacedName{Namespace: "shop", Name: "disk-db-0"}
	unbound.State, unbound.Plugin, unbound.Source, unbound.NextRetry = volumemanager.StatePending, "", "", time.Time{}
	busy := mounted("cache-0", "large")
	busy.State, busy.Operation, busy.Began, busy.Progress = volumemanager.StatePending, "set-up", time.Now().Add(-5*time.Minute), volume.Progress{Doing: "changing the group of files", Done: 120_000, Total: 400_000}
	unused := mounted("web-1", "spare")
	unused.State, unused.Source = volumemanager.StateUnused, ""
	return append(rows, helper, unbound, busy, unused)
}

// served is a page at an address of the loopback interface.
func served(t *testing.T, rows ...volumemanager.VolumeStatus) (*state, string) {
	t.Helper()
	s := &state{rows: rows}
	someEvents(s)
	p := New(Config{Node: "node1", Rows: s.get, Events: s.past.All, Version: s.watch.Version, Drivers: func() []Driver {
		return []Driver{{Name: "csi.example.com", Version: "1.4", State: "answers"},
			{Name: "slow.example.com", State: "silent", Trouble: true, Since: time.Now().Add(-10 * time.Minute), Error: "NodePublishVolume: deadline exceeded", Calls: []string{"NodeStageVolume of vol-17 for 65 s"}}}
	}})
	server := httptest.NewServer(s.beside(p))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // which wait for changes
	return s, server.URL
}

// beside serves the page with its watch.
func (s *state) beside(p *Page) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", p)
	mux.Handle("GET /watch", nodehttp.WatchPage("/watch", &s.watch, s.get).Handler)
	return mux
}

// someEvents happened to the volumes of someNode, and to others.
func someEvents(s *state) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mail-0", UID: "uid-mail-0"}}
	for range 4 {
		s.past.Pods(nil).Event(pod, v1.EventTypeWarning, "FailedMount", "MountVolume.SetUp failed for volume \"spool\" : mount 10.0.0.9:/spool: connection timed out")
	}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "disk-db-0"}}
	s.past.Storage(nil).Event(claim, v1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	claim.Name = "old"
	s.past.Storage(nil).Event(claim, v1.EventTypeWarning, "ProvisioningFailed", "no room below /var/lib/podvol: "+strings.Repeat("long/", 40))
}

// The page shows each change by itself. Nothing of it moves below a reader's hands: the element
// with the focus keeps it, and so does what is being typed.
func TestBrowserSeesChanges(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	s, url := served(t, someNode()...)
	b.show(url, 1280, 900, "light")
	b.shoot("wide-light")
	b.eval(`window.untouched = true; document.getElementById('events-pod-uid-mail-0').open = true; document.getElementById('to-server-10.0.0.9').focus();`, nil)
	rows := append(someNode(), failed("new-0", "data", errors.New("a new error")))
	s.set(rows[1:]...)
	b.until(`document.body.textContent.includes('a new error')`)
	for _, want := range []string{`window.untouched`, `document.getElementById('events-pod-uid-mail-0').open`, `document.activeElement.id === 'to-server-10.0.0.9'`, `document.getElementById('volume-uid-web-0/data') === null`,
		`document.getElementById('summary').textContent.startsWith('8 volumes of 6 pods')`} {
		var got bool
		if b.eval(want, &got); !got {
			t.Errorf("it is not so that %s", want)
		}
	}

	b.eval(`document.getElementById('q').focus()`, nil)
	for _, key := range "NEW-0" {
		b.press(string(key))
	}
	b.until(`document.querySelectorAll('tr.volume[id^="volume-"]').length === 1`)
	s.set(mounted("new-0", "data"), mounted("new-0", "more"), mounted("old", "data"))
	b.until(`document.getElementById('volume-uid-new-0/more')`)
	var typed string
	if b.eval(`document.getElementById('q').value + location.search`, &typed); typed != "NEW-0?q=NEW-0" {
		t.Errorf("typed was %q", typed)
	}
	s.set()
	b.until(`document.getElementById('range').textContent.includes('no volumes')`)
	b.calm()
}

// The page of a node that has gone says so, and goes on when the node is back.
func TestBrowserSeesANodeGo(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	p, s := newPage(someNode()...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve := func(l net.Listener) *http.Server {
		server := &http.Server{Handler: s.beside(p), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(l) }()
		return server
	}
	server := serve(l)
	b.show("http://"+l.Addr().String(), 1280, 900, "dark")
	server.Close()
	b.until(`document.getElementById('updates').textContent.includes('does not answer')`)
	again, err := net.Listen("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server = serve(again)
	defer server.Close()
	s.set(mounted("back", "data"))
	b.until(`document.getElementById('updates').textContent.includes('updates itself') && document.getElementById('volume-uid-back/data')`)
}

// What others choose acts neither when the page is loaded nor when it is updated, and the page's
// policy would hold even if it had been taken for markup.
func TestBrowserObeysNobodyElse(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	s, url := served(t, hostileRows()...)
	b.show(url, 1280, 900, "light")
	b.until(`document.getElementById('live').textContent.includes('<img src=x')`)
	s.set(append(hostileRows(), mounted("web", hostile+"2"))...)
	b.until(`document.getElementById('live').textContent.includes('{{.Node}}2')`)
	var tags int
	if b.eval(`document.querySelectorAll('img, iframe, object, script').length`, &tags); tags != 1 {
		t.Errorf("there are %d elements that act", tags)
	}
	b.calm()
	var refused bool
	if b.eval(`(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } })()`, &refused); !refused {
		t.Error("text can become markup")
	}
	if b.eval(`new Promise((done) => {
		document.addEventListener('securitypolicyviolation', () => done(true));
		const image = document.createElement('img');
		image.onload = () => done(false);
		image.src = 'data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7';
	})`, &refused); !refused {
		t.Error("an image loads")
	}
}

// On a phone nothing is beside the screen, however long the names; the tables stay tables for
// those who hear them; all text has enough contrast, in light and dark.
func TestBrowserOnAPhone(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	long := failed(strings.Repeat("long", 60), strings.Repeat("name", 15), errors.New(strings.Repeat("/without/a/space", 50)))
	long.Source, long.Claim = strings.Repeat("10.0.0.1:", 40), types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("c", 253)}
	_, url := served(t, append(someNode(), long)...)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{320, 360, 1280} {
			b.show(url, width, 900, scheme)
			b.shoot(fmt.Sprintf("%d-%s", width, scheme))
			var beside int
			if b.eval(`document.documentElement.scrollWidth - innerWidth`, &beside); beside > 0 {
				t.Errorf("at %d pixels %d are beside the screen", width, beside)
			}
			var faint []string
			if b.eval(faintTexts, &faint); len(faint) > 0 {
				t.Errorf("%s, %d pixels: too faint are %q", scheme, width, faint)
			}
		}
	}
	b.show(url, 360, 900, "dark")
	var tree struct {
		Nodes []struct {
			Ignored bool
			Role    struct{ Value string }
			Name    struct{ Value string }
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	heard := make(map[string][]string)
	for _, node := range tree.Nodes {
		if !node.Ignored {
			heard[node.Role.Value] = append(heard[node.Role.Value], node.Name.Value)
		}
	}
	for role, names := range map[string][]string{
		"heading": {"Volumes of node1", "What is waited for", "Volumes", "shop/db-0", "Servers", "CSI drivers"}, "columnheader": {"Volume", "State", "Since (UTC)", "From", "Server"},
		"rowheader": {"disk claim shop/disk-db-0", "spool"}, "searchbox": {"Find"}, "status": {""}, "main": {""}, "navigation": {"States"}, "region": {"Volumes", "Servers"},
	} {
		for _, name := range names {
			if !slices.Contains(heard[role], name) {
				t.Errorf("there is no %s %q: %q", role, name, heard[role])
			}
		}
	}
	b.calm()
}

// faintTexts are the texts whose contrast with what is behind them is below WCAG's 4.5.
const faintTexts = `(() => {
	const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
	const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (element) => {
		for (; element; element = element.parentElement) {
			const colour = parts(getComputedStyle(element).backgroundColor);
			if (colour.length < 4 || colour[3] > 0) return getComputedStyle(element).backgroundColor;
		}
	};
	const faint = [];
	for (const element of document.body.querySelectorAll(':not(script, style)')) {
		if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
		const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
		if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) faint.push(element.textContent.slice(0, 60));
	}
	return faint;
})()`

// Without a mouse all of the page can be reached, in the order in which it is read, and one sees
// where one is.
func TestBrowserWithoutAMouse(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	var rows []volumemanager.VolumeStatus
	for i := range 250 {
		rows = append(rows, mounted(fmt.Sprintf("web-%03d", i), "data"))
	}
	_, url := served(t, append(rows, someNode()...)...)
	b.show(url, 1280, 900, "light")
	var visited []string
	for range 40 {
		b.press("Tab")
		var at struct {
			Name    string
			Outline string
			Visible bool
		}
		b.eval(`(() => { const e = document.activeElement, r = e.getBoundingClientRect(); return {name: e.textContent || e.id, outline: getComputedStyle(e).outlineStyle, visible: r.left >= 0 && r.top >= 0 && r.bottom <= innerHeight} })()`, &at)
		visited = append(visited, at.Name)
		if at.Outline == "none" || !at.Visible {
			t.Errorf("one does not see that %q has the focus: %+v", at.Name, at)
		}
		if at.Name == "Next page" {
			break
		}
	}
	want := []string{"Skip to the volumes", "q", "Find", "258 all", "3 need a look"}
	if len(visited) < len(want) || !slices.Equal(visited[:len(want)], want) || visited[len(visited)-1] != "Next page" {
		t.Errorf("the keys lead to %q", visited)
	}
	b.press("Enter")
	select {
	case <-b.loaded:
	case <-time.After(time.Minute):
		t.Fatal("the next page does not load")
	}
	var second string
	if b.eval(`document.getElementById('range').textContent`, &second); second != "101 to 200 of 258" {
		t.Errorf("the next page has %q", second)
	}

	b.show(url, 1280, 900, "light")
	b.press("Tab")
	b.press("Enter") // skips to the volumes
	b.press("Tab")
	var at string
	if b.eval(`document.activeElement.textContent`, &at); !strings.HasPrefix(at, "Last event: FailedMount") {
		t.Errorf("after the skip the next is %q", at)
	}
}

// Without a script the page has everything, and can be searched.
func TestBrowserWithoutAScript(t *testing.T) {
	b := startBrowser(t)
	if b == nil {
		return
	}
	_, url := served(t, someNode()...)
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.show(url+"/?q=mail", 1280, 900, "light")
	var text string
	b.eval(`document.body.innerText`, &text)
	for _, want := range []string{"1 to 1 of 1, from 8 in all", "shop/mail-0", "Reload the page"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
	b.calm()
}
