package nodepage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

// state is a node's state that tests change.
type state struct {
	mu    sync.Mutex
	rows  []volumemanager.VolumeStatus
	past  nodeevents.Ring
	looks int
	watch nodehttp.Watch
}

func (s *state) get() []volumemanager.VolumeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return append([]volumemanager.VolumeStatus{}, s.rows...)
}

func (s *state) set(rows ...volumemanager.VolumeStatus) {
	s.mu.Lock()
	s.rows = rows
	s.mu.Unlock()
	s.watch.Notify()
}

func newPage(rows ...volumemanager.VolumeStatus) (*Page, *state) {
	s := &state{rows: rows}
	return New(Config{Node: "node1", Rows: s.get, Events: s.past.All, Version: s.watch.Version}), s
}

// get is the answer to a request for a path.
func get(t *testing.T, p *Page, path string) *httptest.ResponseRecorder {
	t.Helper()
	return getUntil(t.Context(), p, path)
}

func getUntil(ctx context.Context, p *Page, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	return w
}

func mounted(pod, name string) volumemanager.VolumeStatus {
	return volumemanager.VolumeStatus{Pod: types.NamespacedName{Namespace: "shop", Name: pod}, PodUID: types.UID("uid-" + pod), Volume: name,
		Plugin: "kubernetes.io/nfs", Source: "10.0.0.1:/export", State: volumemanager.StateMounted, Wanted: true, Since: time.Now().Add(-90 * time.Second)}
}

func failed(pod, name string, err error) volumemanager.VolumeStatus {
	v := mounted(pod, name)
	v.State, v.Err, v.Failures, v.NextRetry = volumemanager.StateFailed, err, 3, time.Now().Add(time.Minute)
	return v
}

// hostile is a text that would be markup, a script, a handler, an address or a verb of Printf if
// it were not escaped, and that has what no page is to have.
const hostile = "javascript:alert(0)//<img src=x onerror=\"alert(1)\"></script></style></title><script>alert(2)</script>'\" autofocus onfocus=alert(3) &lt;%s%d<!--{{.Node}}\x00\x1b[31m\xff\u202e"

// hostileRows have it in every text that others choose.
func hostileRows() []volumemanager.VolumeStatus {
	v := failed(hostile, hostile, errors.New(hostile+"\n"+hostile))
	v.Pod.Namespace, v.PodUID, v.Source, v.Plugin, v.Operation = hostile, hostile, hostile, hostile, hostile
	v.Progress = volume.Progress{Doing: hostile}
	v.Claim = types.NamespacedName{Namespace: hostile, Name: hostile}
	v.Server = volumesource.Health{Source: hostile, Err: errors.New(hostile), Since: time.Now(), RetryAt: time.Now().Add(time.Hour)}
	v.Condition = &volume.Condition{Abnormal: true, Message: hostile}
	v.Attachment = &volumemanager.AttachmentError{Volume: hostile, Node: hostile}
	return []volumemanager.VolumeStatus{v}
}

// hostileEvents are about those rows, and about others.
func hostileEvents(s *state) {
	for _, name := range []string{hostile, "other " + hostile} {
		about := metav1.ObjectMeta{Namespace: hostile, Name: name, UID: types.UID(name)}
		for range 2 {
			s.past.Pods(nil).Event(&v1.Pod{ObjectMeta: about}, hostile, hostile, hostile)
			s.past.Storage(nil).Event(&v1.PersistentVolumeClaim{ObjectMeta: about}, v1.EventTypeWarning, hostile, hostile)
		}
	}
}

// What others choose is text, wherever it is shown.
func TestNothingOfOthersIsMarkup(t *testing.T) {
	s := &state{rows: hostileRows()}
	hostileEvents(s)
	p := New(Config{
		Node: hostile, Rows: s.get, Version: s.watch.Version, Events: s.past.All, Damaged: func() error { return errors.New(hostile) },
		Drivers: func() []Driver {
			return []Driver{{Name: hostile, Version: hostile, State: hostile, Error: hostile, Calls: []string{hostile}, Trouble: true, Since: time.Now()}}
		},
		Refused: func() []Refused {
			return []Refused{{Path: hostile, Reason: hostile + "\n" + hostile, Since: time.Now()}}
		},
	})
	text := get(t, p, "/").Body.String()
	if n := strings.Count(text, "&lt;img src=x onerror="); n < 65 {
		t.Errorf("the text is shown %d times only", n)
	}
	query := url.QueryEscape(hostile)
	asked := get(t, p, "/?q="+query+"&state="+query+"&page="+query).Body.String()
	several := get(t, New(Config{Node: hostile, Version: s.watch.Version, Rows: func() []volumemanager.VolumeStatus {
		return slices.Repeat(hostileRows(), 3*perPage)
	}}), "/?page=2&q="+query).Body.String() // leads to others
	for _, page := range []string{text, asked, several} {
		if !isBalanced(page) || strings.Count(page, "<script") != 1 || strings.Contains(page, "<img") || strings.Contains(page, "<!--") || strings.Contains(page, "%!") || strings.ContainsAny(page, "\x00\x1b\u202e") || !utf8.ValidString(page) {
			t.Errorf("it is markup, or no text, in\n%s", page)
		}
		for _, address := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
			if !strings.HasPrefix(address[1], "./") && address[1] != "#volumes" {
				t.Errorf("an address is %s", address[1])
			}
		}
		for _, tag := range regexp.MustCompile(`<[^>]*>`).FindAllString(page, -1) {
			if regexp.MustCompile(`(?i)\s(on\w+|style|src)\s*=`).MatchString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag, `""`)) {
				t.Errorf("a tag acts: %s", tag)
			}
		}
	}
}

// isBalanced reports whether each element of a page has its end, and no other has one.
func isBalanced(page string) bool {
	var open []string
	for _, tag := range regexp.MustCompile(`<(/?)(\w+)( [\w-]+="[^"<>]*")*>`).FindAllStringSubmatch(page, -1) {
		switch end, name := tag[1] != "", tag[2]; {
		case name == "meta" || name == "input":
		case !end:
			open = append(open, name)
		case len(open) == 0 || open[len(open)-1] != name:
			return false
		default:
			open = open[:len(open)-1]
		}
	}
	return len(open) == 0
}

// The policy allows the page's own style and script, and nothing else; the page loads nothing.
func TestPolicyAllowsThePageOnly(t *testing.T) {
	p, _ := newPage(mounted("web", "data"))
	answer := get(t, p, "/")
	text, header := answer.Body.String(), answer.Header()
	for tag, directive := range map[string]string{"style": "style-src", "script": "script-src"} {
		parts := regexp.MustCompile("(?s)<"+tag+">(.*?)</"+tag+">").FindAllStringSubmatch(text, -1)
		if len(parts) != 1 {
			t.Fatalf("%d elements %s", len(parts), tag)
		}
		if !strings.Contains(header.Get("Content-Security-Policy"), directive+" "+hash(parts[0][1])+";") {
			t.Errorf("the policy %q does not have the page's %s", header.Get("Content-Security-Policy"), tag)
		}
	}
	for _, part := range []string{"default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(header.Get("Content-Security-Policy"), part) {
			t.Errorf("the policy lacks %s", part)
		}
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"} {
		if got := header.Get(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if strings.Contains(text, "http:") || strings.Contains(text, "https:") || strings.Contains(text, "//cdn") {
		t.Error("the page names something elsewhere")
	}
}

// Without a script the page has everything: what failed with its advice, and what waits for what.
func TestPageSaysWhatIsWrong(t *testing.T) {
	cause := &mount.Error{Op: "mount", Source: "10.0.0.1:/export", FSType: "nfs", Cause: mount.ErrHelperMissing}
	if cause.Advice() == "" {
		t.Fatal("the error has no advice")
	}
	bound := failed("db", "disk", &claimbinding.Error{Claim: types.NamespacedName{Namespace: "shop", Name: "d"}, Detail: "no volume is large enough", Err: claimbinding.ErrUnbound})
	bound.State = volumemanager.StatePending
	dead := failed("mail", "spool", errors.New("no answer"))
	dead.Server = volumesource.Health{Source: "10.0.0.9", Since: time.Now().Add(-time.Hour), RetryAt: time.Now().Add(time.Minute), Failures: 3}
	busy := mounted("cache", "big")
	busy.State, busy.Operation, busy.Began, busy.Progress = volumemanager.StatePending, "set-up", time.Now().Add(-5*time.Minute), volume.Progress{Doing: "fsGroup", Done: 10, Total: 20}
	missing := failed("cron", "cfg", &volume.ObjectNotFoundError{Ref: volume.ObjectRef{Kind: "ConfigMap", NamespacedName: types.NamespacedName{Namespace: "shop", Name: "settings"}}})
	p, _ := newPage(mounted("web", "data"), failed("web2", "data", &volume.Error{Op: "SetUp", Volume: "data", Err: cause}), bound, dead, busy, missing)
	text := get(t, p, "/").Body.String()
	for _, want := range []string{
		"6 volumes of 6 pods: 1 mounted, 2 pending, 3 failed.", cause.Advice(), "claim shop/d to be bound", "server 10.0.0.9 to answer", "settings to exist",
		"the end of a set-up by kubernetes.io/nfs", "set-up under way for 5 min: fsGroup, 10 of 20", "after 3 failures", "1 min", "server 10.0.0.9 has not answered since",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if first, last := strings.Index(text, "shop/web2"), strings.Index(text, "<h3>shop/web<"); first > last {
		t.Error("trouble does not come first")
	}
	for path, want := range map[string]string{"/?q=MAIL": "1 to 1 of 1, from 6 in all", "/?state=troubled": "1 to 5 of 5", "/?state=mounted": "1 to 1 of 1", "/?q=server+10.0.0.9+to+answer": "1 to 1 of 1", "/?q=nosuch": "None of the 6 volumes matches"} {
		if text := get(t, p, path).Body.String(); !strings.Contains(text, want) {
			t.Errorf("%s does not say %q", path, want)
		}
	}
}

// A full node makes no larger page than a small one, and all of its volumes can be reached.
func TestPagesOfAFullNode(t *testing.T) {
	var rows []volumemanager.VolumeStatus
	for i := range 20000 {
		rows = append(rows, mounted(fmt.Sprintf("pod-%05d", i/2), fmt.Sprintf("volume-%d", i)))
	}
	rows[19999] = failed("pod-09999", "volume-19999", errors.New(strings.Repeat("a long text ", 10000)))
	p, _ := newPage(rows...)
	first := get(t, p, "/").Body.String()
	if len(first) > 150_000 || strings.Count(first, `class="volume"`) != perPage {
		t.Errorf("%d bytes, %d volumes", len(first), strings.Count(first, `class="volume"`))
	}
	if !strings.Contains(first, "volume-19999") || !strings.Contains(first, `href="./?page=2"`) || !strings.Contains(first, "1 to 100 of 20000") {
		t.Error("the failed volume is not on the first page, or that leads to no second")
	}
	for _, path := range []string{"/?page=200", "/?page=9999999"} {
		if last := get(t, p, path).Body.String(); !strings.Contains(last, "19901 to 20000 of 20000") || strings.Contains(last, "Next page") {
			t.Errorf("%s is not the last page", path)
		}
	}
}

// An error's text is shown, and nobody's eye is led elsewhere by it.
func TestPlainText(t *testing.T) {
	for text, want := range map[string]string{
		"a\x1b[31mb": "a\uFFFD[31mb", "a\u202eb": "a\uFFFDb", "a\nb": "a\nb", "a\xffb": "a\uFFFDb", "a\u2028b": "a\uFFFDb",
		strings.Repeat("ü", maxText+1): strings.Repeat("ü", maxText) + "…", strings.Repeat("ü", maxText): strings.Repeat("ü", maxText),
	} {
		if got := plain(text); got != want {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

// A page that is asked for after a change shows it, also while the last look is young: it waits
// for the next one.
func TestPageShowsWhatIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := newPage(mounted("web", "data"))
		get(t, p, "/")
		began := time.Now()
		get(t, p, "/")
		if s.looks != 1 || time.Since(began) != 0 {
			t.Errorf("%d looks at a node that is the same, after %v", s.looks, time.Since(began))
		}
		s.set(failed("web", "data", errors.New("a new error")))
		if text := get(t, p, "/").Body.String(); !strings.Contains(text, "a new error") || time.Since(began) != pause {
			t.Errorf("after %v: %s", time.Since(began), text)
		}
		s.set(mounted("web", "data"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the reader has gone
		if answer := getUntil(ctx, p, "/"); answer.Body.Len() != 0 {
			t.Errorf("%s", answer.Body)
		}
		time.Sleep(pause) // the last look is forgotten
		synctest.Wait()
		if p.shared != nil {
			t.Error("the last look is kept")
		}
	})
}

// However many look, and however often the node changes, the node is asked once a second, and
// every reader has an answer soon.
func TestCrowdCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := newPage(mounted("web", "data"))
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for range 64 {
			readers.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					if getUntil(ctx, p, "/"); time.Since(began) > 2*pause {
						t.Errorf("an answer took %v", time.Since(began))
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		synctest.Wait()
		before := s.looks
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			s.watch.Notify()
		}
		synctest.Wait() // readers wake at the same time
		if looks := s.looks - before; looks < 9 || looks > 11 {
			t.Errorf("%d looks in ten seconds", looks)
		}
		cancel()
		readers.Wait()
		time.Sleep(pause)
	})
}

// What happened is shown where it happened: to the pod, to the claim, once where several pods
// have it, or beside all volumes.
// A claim's row does not show what happened to another claim that had its name.
func TestEventsAreOfTheObjectThatIsThere(t *testing.T) {
	r := mounted("web", "data")
	r.Claim = types.NamespacedName{Namespace: "shop", Name: "d"}
	of := func(uid types.UID, reason string) nodeevents.Event {
		return nodeevents.Event{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "d", UID: uid, Reason: reason}
	}
	found := newEvents([]nodeevents.Event{of("1", "old"), of("", "Deleted"), of("2", "new"), of("2", "newer")}, []volumemanager.VolumeStatus{r})
	var got []string
	for _, e := range slices.Concat(found.of["PersistentVolumeClaim shop/d"], found.others) {
		got = append(got, e.Reason)
	}
	if want := "new newer old Deleted"; strings.Join(got, " ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPageShowsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claimed := mounted("web", "data")
		claimed.Claim, claimed.PersistentVolume = types.NamespacedName{Namespace: "shop", Name: "d"}, "pv-1"
		other := claimed
		other.Pod.Name, other.PodUID = "web2", "uid-web2"
		p, s := newPage(claimed, other)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"}}
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "d"}}
		for i := range maxHistory + 1 {
			s.past.Pods(nil).Event(pod, v1.EventTypeWarning, "FailedMount", fmt.Sprint("try ", i))
			time.Sleep(time.Second)
		}
		s.past.Storage(nil).Event(claim, v1.EventTypeNormal, "WaitForFirstConsumer", "waits for a pod")
		time.Sleep(time.Second)
		s.past.Storage(nil).Event(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}, v1.EventTypeNormal, "Bound", "to shop/d")
		claim.Name = "alone"
		time.Sleep(time.Minute)
		s.past.Storage(nil).Event(claim, v1.EventTypeWarning, "ProvisioningFailed", "no room")
		text := get(t, p, "/").Body.String()
		for want, times := range map[string]int{"Last of 7 events: FailedMount, 1 min ago": 1, "try 0": 0, "try 1": 1, "try 6": 1,
			"Last of 2 events: Bound, 1 min ago": 1, "waits for a pod": 1, "Last event: ProvisioningFailed, 0 s ago": 1, "claim shop/alone": 1} {
			if got := strings.Count(text, want); got != times {
				t.Errorf("%q is there %d times", want, got)
			}
		}
		if strings.Contains(get(t, p, "/?q=web").Body.String(), "ProvisioningFailed") {
			t.Error("a search shows what happened to others")
		}
		time.Sleep(pause)
	})
}

// Refused manifests are listed, so many of them, and nothing in their names or reasons is markup.
func TestRefusedManifests(t *testing.T) {
	s := &state{}
	all := make([]Refused, maxRefused+3)
	for i := range all {
		all[i] = Refused{fmt.Sprintf("/m/%d<script>.yaml", i), "<img src=x onerror=alert(1)>" + strings.Repeat("n", 3*maxText) + "end", time.Now()}
	}
	page := get(t, New(Config{Node: "node1", Rows: s.get, Refused: func() []Refused { return all }, Version: s.watch.Version}), "/").Body.String()
	if n := strings.Count(page, `id="why-refused-`); n != maxRefused || !strings.Contains(page, "and 3 more") {
		t.Errorf("%d are listed", n)
	}
	if strings.Contains(page, "<img") || strings.Contains(page, "/0<script>") || strings.Contains(page, "nend") {
		t.Error("a refused manifest is markup, or shown whole")
	}
}
