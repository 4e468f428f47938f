"""The compiled twin has the plain one's names and signatures."""

from penstock.format.kernels._plain import Appender as Appender
from penstock.format.kernels._plain import TopicTable as TopicTable
from penstock.format.kernels._plain import append_units as append_units
from penstock.format.kernels._plain import check_record as check_record
from penstock.format.kernels._plain import copy_published as copy_published
from penstock.format.kernels._plain import crc32 as crc32
from penstock.format.kernels._plain import encode_record as encode_record
from penstock.format.kernels._plain import find_property as find_property
from penstock.format.kernels._plain import find_record as find_record
from penstock.format.kernels._plain import group_rows as group_rows
from penstock.format.kernels._plain import index_find as index_find
from penstock.format.kernels._plain import index_keys as index_keys
from penstock.format.kernels._plain import index_put as index_put
from penstock.format.kernels._plain import index_rewind as index_rewind
from penstock.format.kernels._plain import java_hash as java_hash
from penstock.format.kernels._plain import publish as publish
from penstock.format.kernels._plain import tag_codes as tag_codes
from penstock.format.kernels._plain import walk as walk
from penstock.format.kernels._plain import write_blank as write_blank
