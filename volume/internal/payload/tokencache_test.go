package payload

import (
	"strconv"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/clockjump"
)

// A machine that has slept, or whose clock was set, asks for a new token once the wall clock
// says that the old one is due. It hands out no token that has expired by it.
func TestTokenIsRenewedAfterTheClockJumps(t *testing.T) {
	tests := map[string]struct {
		jump time.Duration
		asks int
	}{
		"no jump":               {0, 1},
		"a nap":                 {10 * time.Minute, 1},
		"due":                   {50 * time.Minute, 2},
		"expired":               {2 * time.Hour, 2},
		"from 1970":             {50 * 365 * 24 * time.Hour, 2},
		"the clock is set back": {-time.Hour, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var c tokenCache
			key := tokenKey{podUID: "u", expirationSeconds: 3600}
			asks := 0
			ask := func() (*authenticationv1.TokenRequest, error) {
				asks++
				return &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
					Token: "token " + strconv.Itoa(asks), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour).Round(0))}}, nil
			}
			if _, err := c.get(t.Context(), key, ask); err != nil {
				t.Fatal(err)
			}
			held := c.tokens[key]
			held.due, held.expires = clockjump.Ahead(held.due, tc.jump), clockjump.Ahead(held.expires, tc.jump)
			c.tokens[key] = held
			got, err := c.get(t.Context(), key, ask)
			if err != nil || asks != tc.asks || got.secret() != "token "+strconv.Itoa(tc.asks) {
				t.Errorf("%d requests, want %d; got %q, %v", asks, tc.asks, got.secret(), err)
			}
		})
	}
}
