package nodepage

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp/nodepage/internal/markup"
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
	looks int
}

func (s *state) get() []volumemanager.VolumeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return append([]volumemanager.VolumeStatus{}, s.rows...)
}

func (s *state) set(p *Page, rows ...volumemanager.VolumeStatus) {
	s.mu.Lock()
	s.rows = rows
	s.mu.Unlock()
	p.Changed()
}

func newPage(rows ...volumemanager.VolumeStatus) (*Page, *state) {
	s, p := &state{rows: rows}, New()
	p.Show(Config{Node: "node1", Rows: s.get})
	return p, s
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

// hostile is a text that would be markup, a script or a handler if it were not escaped.
const hostile = `<img src=x onerror="alert(1)"></script><script>alert(2)</script>'"&{{.Node}}`

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

// What others choose is text, wherever it is shown.
func TestNothingOfOthersIsMarkup(t *testing.T) {
	s, p := &state{rows: hostileRows()}, New()
	p.Show(Config{Node: hostile, Rows: s.get, Damaged: func() error { return errors.New(hostile) }, Drivers: func() []Driver {
		return []Driver{{Name: hostile, Version: hostile, State: hostile, Error: hostile, Calls: []string{hostile}, Trouble: true, Since: time.Now()}}
	}})
	text := get(t, p, "/").Body.String()
	if n := strings.Count(text, "&lt;img src=x onerror="); n < 15 {
		t.Errorf("the text is shown %d times only", n)
	}
	asked := get(t, p, "/?q=%3Cimg&state=%22%3E%3Cscript%3E&page=%3Cb%3E").Body.String()
	for _, page := range []string{text, asked} {
		if strings.Contains(page, "<img") || strings.Count(page, "<script") != 1 || strings.Count(page, "</script") != 1 || strings.Contains(page, "<b>page") {
			t.Errorf("it is markup in\n%s", page)
		}
		for _, tag := range regexp.MustCompile(`<[^>]*>`).FindAllString(page, -1) {
			if regexp.MustCompile(`(?i)\s(on\w+|style|src)\s*=`).MatchString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag, `""`)) {
				t.Errorf("a tag acts: %s", tag)
			}
		}
	}
}

// The page is what html/template makes of it, but for the style and the script.
func TestThePageIsHTMLTemplates(t *testing.T) {
	source := strings.NewReplacer("{{.Style}}", "", "{{.Script}}", "").Replace(source)
	page, err := markup.Parse[view](source)
	if err != nil {
		t.Fatal(err)
	}
	other := template.Must(template.New("page").Parse(source))
	rows := hostileRows()
	for i := range 300 {
		rows = append(rows, mounted(fmt.Sprint(i), "a+b"))
	}
	l := &look{version: hostile, taken: time.Now(), rows: rows, damaged: errors.New(hostile), drivers: []Driver{{Name: hostile, Version: hostile, State: hostile, Error: hostile, Calls: []string{hostile}}, {Name: "idle"}}}
	for _, l := range []*look{l, {taken: time.Now()}} {
		for _, query := range []string{"", "?page=2", "?state=troubled", "?q=%22%3E%3Cimg&state=%22%3E%3Cscript%3E"} {
			v := newView(hostile, l, httptest.NewRequest(http.MethodGet, "/"+query, nil).URL.Query())
			var want strings.Builder
			if err := other.Execute(&want, v); err != nil {
				t.Fatal(err)
			}
			if got := string(page.Execute(v)); got != want.String() {
				t.Errorf("%s: the page is\n%s\nhtml/template's\n%s", query, got, want.String())
			}
		}
	}
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

var version = regexp.MustCompile(`data-version="([^"]*)"`)

// versionOf is the version of an answer.
func versionOf(t *testing.T, answer *httptest.ResponseRecorder) string {
	t.Helper()
	found := version.FindStringSubmatch(answer.Body.String())
	if found == nil {
		t.Fatalf("%d: %s", answer.Code, answer.Body)
	}
	return found[1]
}

// A request for the next page is answered by a change, at once, or after a while.
func TestNextPageComesWithAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := newPage(mounted("web", "data"))
		now := versionOf(t, get(t, p, "/"))
		time.Sleep(10 * time.Second) // virtual
		answered := make(chan *httptest.ResponseRecorder)
		go func() { answered <- get(t, p, "/?after="+now) }()
		synctest.Wait()
		select {
		case <-answered:
			t.Fatal("it was answered without a change")
		default:
		}
		began := time.Now()
		s.set(p, failed("web", "data", errors.New("a new error")))
		next := <-answered
		if text := next.Body.String(); !strings.Contains(text, "a new error") || time.Since(began) != 0 {
			t.Errorf("after %v: %s", time.Since(began), text)
		}

		// A change that was missed counts, and the second look waits for the end of its pause.
		began = time.Now()
		s.set(p, mounted("web", "other"))
		if text := get(t, p, "/?after="+versionOf(t, next)).Body.String(); !strings.Contains(text, "other") || time.Since(began) != pause {
			t.Errorf("after %v: %s", time.Since(began), text)
		}
		last := versionOf(t, get(t, p, "/"))
		began = time.Now()
		if got := versionOf(t, get(t, p, "/?after="+last)); got != last || time.Since(began) != longest {
			t.Errorf("without a change: %s after %v", got, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the reader has gone
		if answer := getUntil(ctx, p, "/?after="+last); answer.Body.Len() != 0 {
			t.Errorf("%s", answer.Body)
		}
		time.Sleep(pause) // the last look is forgotten
	})
}

// However many look, and however often the node changes, the node is asked once a second;
// only so many requests wait, and the others hear of it at once.
func TestCrowdCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := newPage(mounted("web", "data"))
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for range maxWaiting {
			readers.Go(func() {
				after := ""
				for ctx.Err() == nil {
					answer := getUntil(ctx, p, "/?after="+after)
					if ctx.Err() == nil {
						after = versionOf(t, answer)
					}
				}
			})
		}
		synctest.Wait()
		if answer := get(t, p, "/?after="+p.shared.version); answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
			t.Errorf("one more is answered %d", answer.Code)
		}
		if answer := get(t, p, "/"); answer.Code != http.StatusOK {
			t.Errorf("one that does not wait is answered %d", answer.Code)
		}
		before := s.looks
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			p.Changed()
		}
		synctest.Wait()
		if looks := s.looks - before; looks < 9 || looks > 11 {
			t.Errorf("%d looks in ten seconds", looks)
		}
		cancel()
		readers.Wait()
		time.Sleep(pause)
		synctest.Wait()
		if p.shared != nil || p.waiting != 0 {
			t.Errorf("the last look is kept, or %d wait", p.waiting)
		}
	})
}
