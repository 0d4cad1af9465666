package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A page token is a cursor, bound to its tenant and filter by a keyed hash: 8 bytes of time, 16 of id, 16
// of hash, as URL-safe base64. Whoever changes one, or uses it for another list, is refused.
const tokenLen = 8 + 16 + 16

var tokenText = base64.RawURLEncoding.Strict()

func (s *Services) pageToken(f store.Filter, c store.Cursor) string {
	var b [tokenLen]byte
	binary.BigEndian.PutUint64(b[:8], uint64(c.CreatedAt.UnixMicro()))
	copy(b[8:24], c.ID[:])
	copy(b[24:], s.tokenHash(f, b[:24]))
	return tokenText.EncodeToString(b[:])
}

// readPageToken returns the cursor of a token; the empty one is the start. Its error is a *task.FieldError.
func (s *Services) readPageToken(f store.Filter, token string) (store.Cursor, error) {
	if token == "" {
		return store.Cursor{}, nil
	}
	b, err := tokenText.DecodeString(token)
	if err != nil || len(b) != tokenLen || !hmac.Equal(b[24:], s.tokenHash(f, b[:24])) {
		return store.Cursor{}, &task.FieldError{Field: "page_token", Want: "the next_page_token of the page before, with the same filter"}
	}
	return store.Cursor{CreatedAt: time.UnixMicro(int64(binary.BigEndian.Uint64(b[:8]))).UTC(), ID: task.ID(b[8:24])}, nil
}

func (s *Services) tokenHash(f store.Filter, cursor []byte) []byte {
	h := hmac.New(sha256.New, []byte("page\x00"+s.cfg.Secret))
	h.Write(cursor)
	for _, part := range []string{f.Tenant, f.Function, f.State.String(), f.Label} {
		h.Write([]byte(part))
		h.Write([]byte{0}) // none of them holds a NUL
	}
	return h.Sum(nil)[:16]
}
