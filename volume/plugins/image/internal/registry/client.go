// Package registry reads images from a registry, by the OCI distribution specification.
//
// It is a client for pulls alone, on net/http: a registry is a stranger, so that each
// answer has a bound in size and time, and credentials go to the registry, and to the
// token service that it names, only.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// Config is what all clients of a node have in common.
type Config struct {
	// Transport carries the requests, such as one of [NewTransport].
	Transport http.RoundTripper
	// PlainHTTP are the registries, with their ports, that are reached without TLS.
	// Registries of this machine (localhost, 127.0.0.1, ::1) always are.
	PlainHTTP []string
	// Stall is how long a body may bring less than Least bytes; Least 0: nothing.
	Stall time.Duration
	Least int64
}

// ErrUnauthorized says that the registry does not give the image to these credentials.
const ErrUnauthorized volume.Cause = "the registry refuses access"

// ErrStalled says that a registry has begun an answer and does not go on, or too slowly.
const ErrStalled volume.Cause = "the registry sends too little"

// NewTransport returns a transport whose connections and answers have to begin in time.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    15 * time.Second,
		ResponseHeaderTimeout:  30 * time.Second,
		IdleConnTimeout:        30 * time.Second,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // a blob's digest is of the bytes as they are sent
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// Client reads from registries as one user. It is an [oci.Fetcher], and safe for
// concurrent use.
type Client struct {
	config      Config
	credentials Credentials
	http        *http.Client

	mu    sync.Mutex
	token map[string]string // the Authorization header, by repository
}

// New returns a client. Without credentials it is anonymous.
func New(config Config, credentials Credentials) *Client {
	c := &Client{config: config, credentials: credentials, token: make(map[string]string)}
	c.http = &http.Client{Transport: config.Transport, CheckRedirect: checkRedirect}
	return c
}

const maxRedirects = 5

// checkRedirect keeps what was asked for by TLS from being answered without, and credentials
// from another host or port, also a subdomain, to which net/http would send them.
func checkRedirect(to *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return errors.New("the registry redirects without end")
	case via[0].URL.Scheme == "https" && to.URL.Scheme != "https":
		return fmt.Errorf("the registry redirects to %s, without TLS", to.URL.Host)
	case to.URL.Host == via[0].URL.Host:
		return nil
	case to.Method == http.MethodPost:
		return fmt.Errorf("the token service redirects with the credentials to %s", to.URL.Host)
	}
	to.Header.Del("Authorization")
	return nil
}

func (c *Client) base(ref oci.Reference) string {
	host, scheme := ref.Domain, "https"
	if host == "docker.io" {
		host = "registry-1.docker.io" // where its API is
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	if name == "localhost" || ip != nil && ip.IsLoopback() || slices.Contains(c.config.PlainHTTP, host) {
		scheme = "http"
	}
	return scheme + "://" + host + "/v2/" + ref.Path
}

// manifestTypes are those that [oci.Resolve] reads.
func manifestTypes() []string {
	return []string{
		"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
		"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
	}
}

// Digest asks for the digest that a reference names at present; empty: the registry does not
// tell without its manifest.
func (c *Client) Digest(ctx context.Context, ref oci.Reference) (string, error) {
	r, err := c.do(ctx, http.MethodHead, ref, manifestURL(c.base(ref), ref), 0)
	if err != nil {
		return "", err
	}
	r.Body.Close()
	if d := r.Header.Get("Docker-Content-Digest"); oci.IsDigest(d) {
		return d, nil
	}
	return "", nil
}

func manifestURL(base string, ref oci.Reference) string {
	if ref.Digest != "" {
		return base + "/manifests/" + ref.Digest
	}
	return base + "/manifests/" + ref.Tag
}

// Manifest implements [oci.Fetcher].
func (c *Client) Manifest(ctx context.Context, ref oci.Reference) ([]byte, error) {
	body, err := c.get(ctx, ref, manifestURL(c.base(ref), ref), 0)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, oci.MaxManifest+1))
	if err == nil && len(data) > oci.MaxManifest {
		err = fmt.Errorf("%w: its manifest has more than %d bytes", oci.ErrMalformed, oci.MaxManifest)
	}
	return data, err
}

// Blob implements [oci.Fetcher]. Where the connection breaks, the reader asks for the rest.
func (c *Client) Blob(ctx context.Context, ref oci.Reference, blob oci.Descriptor) (io.ReadCloser, error) {
	r := &resumed{size: blob.Size, least: c.config.Least, open: func(offset int64) (io.ReadCloser, error) {
		return c.get(ctx, ref, c.base(ref)+"/blobs/"+blob.Digest, offset)
	}}
	var err error
	r.body, err = r.open(0)
	return r, err
}

// get returns the body of an answer.
func (c *Client) get(ctx context.Context, ref oci.Reference, url string, offset int64) (io.ReadCloser, error) {
	r, err := c.do(ctx, http.MethodGet, ref, url, offset)
	if err != nil {
		return nil, err
	}
	if offset > 0 && r.StatusCode != http.StatusPartialContent {
		r.Body.Close()
		return nil, fmt.Errorf("the registry cannot go on at byte %d", offset)
	}
	return r.Body, nil
}

// answer sends a request. The body of the answer must go on, also that of a refusal.
func (c *Client) answer(q *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(q.Context())
	r, err := c.http.Do(q.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, withoutQuery(err)
	}
	r.Body = newWatched(ctx, r.Body, c.config.Stall, c.config.Least, cancel)
	return r, nil
}

// do sends a request, and once more with the authorization that the registry asks for.
func (c *Client) do(ctx context.Context, method string, ref oci.Reference, url string, offset int64) (*http.Response, error) {
	c.mu.Lock()
	authorization := c.token[ref.Name()]
	c.mu.Unlock()
	r, err := c.send(ctx, method, url, authorization, offset)
	if err != nil || r.StatusCode != http.StatusUnauthorized {
		return c.checked(r, err, ref)
	}
	challenge := r.Header.Values("WWW-Authenticate")
	discard(r)
	authorization, err = c.authorize(ctx, ref, challenge)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.token[ref.Name()] = authorization
	c.mu.Unlock()
	r, err = c.send(ctx, method, url, authorization, offset)
	return c.checked(r, err, ref)
}

func (c *Client) send(ctx context.Context, method, url, authorization string, offset int64) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("User-Agent", "podvol")
	if strings.Contains(url, "/manifests/") {
		q.Header.Set("Accept", strings.Join(manifestTypes(), ", "))
	}
	if authorization != "" {
		q.Header.Set("Authorization", authorization)
	}
	if offset > 0 {
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	return c.answer(q)
}

// withoutQuery takes the query from the URL of an error: storage behind a registry is
// reached by signed URLs.
func withoutQuery(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		at, _, _ := strings.Cut(e.URL, "?")
		return &url.Error{Op: e.Op, URL: at, Err: e.Err}
	}
	return err
}

// checked turns an answer that is no success into an error.
func (c *Client) checked(r *http.Response, err error, ref oci.Reference) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	if r.StatusCode == http.StatusOK || r.StatusCode == http.StatusPartialContent {
		return r, nil
	}
	said := printable(c.mask(r.Status+words(r), ref))
	discard(r)
	switch r.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("%w to %s (%s)", ErrUnauthorized, ref.Name(), said)
	case http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w (the registry says %s)", ref, volume.ErrNotFound, said)
	}
	return nil, fmt.Errorf("the registry answers %s", said)
}

func discard(r *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 4096)) // so that the connection can serve again
	r.Body.Close()
}
