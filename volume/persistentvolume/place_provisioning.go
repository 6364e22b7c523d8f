package persistentvolume

import (
	"sync"

	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// placing are the claims for which a placement wants storage made.
type placing struct {
	mu     sync.Mutex
	claims map[index.ClaimID]bool
}

// begin reports false for a claim that is being placed already.
func (p *placing) begin(claim index.ClaimID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims[claim] {
		return false
	}
	if p.claims == nil {
		p.claims = make(map[index.ClaimID]bool)
	}
	p.claims[claim] = true
	return true
}

func (p *placing) end(claim index.ClaimID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, claim)
}
