package pgstore

import "encoding/binary"

// columns are the arrays that commit_v1 takes, in its order. The migration says what they mean.
type columns struct {
	pID, pEpoch, pFloor, pRelease, pSeq, pReady, pDue, pBytes           array
	fPart, fTenant, fFunction, fBand, fReady, fBytes                    array
	nTenant, nFunction, nPartition, nBand                               array
	bPartition, bBlock                                                  array
	kTenant, kClient, kID, kPart, kFlow, kReady, kDue, kBytes           array
	iID, iNum, iPlace, iSort, iList, iCreated, iMark, iPayload, iBody   array
	uID, uPlace, uSort, uList, uCreated, uMark, uKeep, uPayload, uBody  array
	dID                                                                 array
	hID, hBlock, hList, hCreated, hMask, hSpan, hSole, hKeyed, hMove    array
	hBody, hPayload                                                     array
	lLabel, lCreated, lID, xLabel, xCreated, xID, mLabel, mCreated, mID array
	rSlot, rPartition, rTenant, rID, rAt, rBody                         array
	gPartition, gTenant, gName, gBody                                   array

	all    []*array // in the order of the parameters; nil where class and day are
	day    [4]byte
	values [][]byte
	oids   []uint32
	binary []int16
}

func (c *columns) init() {
	add := func(elem uint32, as ...*array) {
		for _, a := range as {
			a.elem = elem
			c.all = append(c.all, a)
			c.oids = append(c.oids, arrayOIDs[elem])
		}
	}
	add(oidInt8, &c.pID, &c.pEpoch, &c.pFloor)
	add(oidBool, &c.pRelease)
	add(oidInt8, &c.pSeq, &c.pReady, &c.pDue, &c.pBytes)
	add(oidInt4, &c.fPart)
	add(oidText, &c.fTenant, &c.fFunction)
	add(oidInt2, &c.fBand)
	add(oidInt8, &c.fReady, &c.fBytes)
	add(oidText, &c.nTenant, &c.nFunction)
	add(oidInt8, &c.nPartition)
	add(oidInt2, &c.nBand)
	add(oidInt8, &c.bPartition, &c.bBlock)
	add(oidText, &c.kTenant)
	add(oidBytea, &c.kClient)
	add(oidUUID, &c.kID)
	add(oidInt4, &c.kPart, &c.kFlow)
	add(oidInt8, &c.kReady, &c.kDue, &c.kBytes)
	add(oidUUID, &c.iID)
	add(oidInt8, &c.iNum, &c.iPlace, &c.iSort, &c.iList, &c.iCreated, &c.iMark)
	add(oidBytea, &c.iBody, &c.iPayload)
	add(oidUUID, &c.uID)
	add(oidInt8, &c.uPlace, &c.uSort, &c.uList, &c.uCreated, &c.uMark)
	add(oidBool, &c.uKeep)
	add(oidBytea, &c.uPayload, &c.uBody)
	add(oidUUID, &c.dID)
	c.all = append(c.all, nil, nil)
	c.oids = append(c.oids, oidInt2, oidInt4)
	add(oidUUID, &c.hID)
	add(oidInt8, &c.hBlock, &c.hList, &c.hCreated, &c.hMask)
	add(oidInt4, &c.hSpan)
	add(oidInt2, &c.hSole)
	add(oidBool, &c.hKeyed, &c.hMove)
	add(oidBytea, &c.hBody, &c.hPayload)
	for _, as := range [][3]*array{{&c.lLabel, &c.lCreated, &c.lID}, {&c.xLabel, &c.xCreated, &c.xID}, {&c.mLabel, &c.mCreated, &c.mID}} {
		add(oidInt8, as[0], as[1])
		add(oidUUID, as[2])
	}
	add(oidInt2, &c.rSlot)
	add(oidInt8, &c.rPartition)
	add(oidText, &c.rTenant)
	add(oidBytea, &c.rID)
	add(oidInt8, &c.rAt)
	add(oidBytea, &c.rBody)
	add(oidInt8, &c.gPartition)
	add(oidText, &c.gTenant, &c.gName)
	add(oidBytea, &c.gBody)
	c.binary = make([]int16, len(c.all))
	for i := range c.binary {
		c.binary[i] = 1
	}
	c.values = make([][]byte, len(c.all))
}

// maxKept bounds the memory that an array keeps between batches, in bytes.
const maxKept = 8 << 20

func (c *columns) reset() {
	for _, a := range c.all {
		if a == nil {
			continue
		}
		if cap(a.b) > maxKept {
			a.b = nil
		}
		a.reset()
	}
}

// params returns the parameters for a day of history.
func (c *columns) params(day int32) [][]byte {
	binary.BigEndian.PutUint32(c.day[:], uint32(day))
	scalars := [][]byte{{0, 0}, c.day[:]} // class 0, day
	for i, a := range c.all {
		if a == nil {
			c.values[i], scalars = scalars[0], scalars[1:]
		} else {
			c.values[i] = a.bytes()
		}
	}
	return c.values
}

// size returns how long a message with the parameters is, at most.
func (c *columns) size() int {
	n := len(commitSQL) + 256 // what goes around them
	for _, v := range c.values {
		n += len(v) + 4 + 4 + 2 // length, type and format
	}
	return n
}
