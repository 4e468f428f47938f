import sys,time,tempfile,shutil,threading,resource
from penstock.store import *
from bench.store.ground import TOPIC,body_of
size=int(sys.argv[1]); n=int(sys.argv[2])
def loop(put,n,body):
    w=time.perf_counter(); c=time.thread_time(); 
    for number in range(n):
        message = Message(TOPIC, body, keys=(f"k{number}",), tags="TagA", queue_id=number % 4)
        if not put(message).ok: pass
    return (time.perf_counter()-w)/n*1e6,(time.thread_time()-c)/n*1e6
class R: ok=True
r=R()
print('no put',loop(lambda m:r,n,body_of(size)))
for q in range(3):
    d=tempfile.mkdtemp(dir='/tmp')
    s=MessageStore.open(d,Settings(max_hash_slot_num=1000000,max_index_num=4000000))
    if len(sys.argv)>3:
        s.dispatcher._closed=True; s.dispatcher._wake.set(); s.dispatcher._thread.join()
    u0=resource.getrusage(resource.RUSAGE_THREAD)
    x=loop(s.put,n,body_of(size))
    u1=resource.getrusage(resource.RUSAGE_THREAD)
    print('wall, cpu us',x,'user',(u1.ru_utime-u0.ru_utime)/n*1e6,'sys',(u1.ru_stime-u0.ru_stime)/n*1e6,'minflt',(u1.ru_minflt-u0.ru_minflt)/n,'nvcsw',u1.ru_nvcsw-u0.ru_nvcsw,'nivcsw',u1.ru_nivcsw-u0.ru_nivcsw)
    s.close(); shutil.rmtree(d)
